"""The commands `nemo-algos slurm status | tail | stop RUN`; Slurm knows a run by batch.job_name."""

import os
import re
import subprocess
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from nemo_algos.terminal import echo

OUT = Path("runs/slurm")
DRIVER, BATCH = "logs/*-logs/ray-driver.log", "slurm-*.log"
STEP = re.compile(r"=+ Step (\d+)/(\d+) =+")  # NeMo-RL's line before each step
SEARCHED = 1 << 20  # bytes at the end of a log
Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help="folder, or name below --out")]
Out = Annotated[Path, typer.Option(help="parent of the runs' folders")]


def status(runs: Runs, out: Out = OUT) -> None:
    """The jobs of a run, their state and restarts, its last step and the last one saved."""
    for folder in _folders(runs, out):
        echo(f"{folder.name}: {_progress(folder)}")
        jobs = _jobs(folder)
        for job in jobs:
            echo(f"  job {job} {_state(job)}")
        if not jobs:
            echo(f"  no job in the queue{_last_words(folder)}")


def tail(
    run: Annotated[str, typer.Argument(help="folder, or name below --out")], out: Out = OUT
) -> None:
    """Follow the driver's log, or the batch script's where no driver has started."""
    (folder,) = _folders([run], out)
    logs = [*_newest(folder, DRIVER), *_newest(folder, BATCH)]
    if not logs:
        _end(f"{folder} has no log yet: nemo-algos slurm status {run}")
    os.execvp("tail", ["tail", "-n", "40", "-F", str(logs[0])])


def stop(runs: Runs, out: Out = OUT) -> None:
    """Cancel all jobs of a run, its chain too; steps since the last save are lost."""
    for folder in _folders(runs, out):
        jobs = _jobs(folder)
        if jobs:
            _asked("scancel", *jobs)
        echo(f"{folder.name}: {' '.join(['stopped', *jobs]) if jobs else 'no job to stop'}")


def _folders(runs: list[str], out: Path) -> list[Path]:
    found = [next(filter(_is_run, (Path(run), out / run)), None) for run in runs]
    unknown = [run for run, folder in zip(runs, found, strict=True) if folder is None]
    if unknown:
        _end(f"{', '.join(unknown)}: no run's folder, here or in {out}")
    return [folder.resolve() for folder in found if folder]


def _is_run(folder: Path) -> bool:
    return (folder / "job.sh").is_file() and (folder / "config.yaml").is_file()


def _jobs(folder: Path) -> list[str]:
    from nemo_algos.slurm.batch import job_name

    name = f"--name={job_name(folder)}"
    return sorted(_asked("squeue", "--noheader", "--me", "--format=%A", name).split(), key=int)


def _state(job: str) -> str:
    facts = dict(re.findall(r"(\w+)=(\S*)", _asked("scontrol", "--oneliner", "show", "job", job)))
    waits = facts["JobState"] == "PENDING"
    where = "waits for {Reason}" if waits else "{RunTime} of {TimeLimit} on {NodeList}"
    return f"{{JobState}}, {{Restarts}} restarts, {where}".format(**facts)


def _progress(folder: Path) -> str:
    from nemo_algos.config import ConfigError, at, load

    began = next((step for log in _newest(folder, DRIVER) for step in _steps(log)[-1:]), None)
    try:
        checkpoints = at(load(folder / "config.yaml"), "checkpointing.checkpoint_dir")
    except ConfigError as error:
        _end(str(error))
    names = [path.name.removeprefix("step_") for path in Path(str(checkpoints)).glob("step_*")]
    saved = max((int(name) for name in names if name.isdecimal()), default=0)
    end = ", finished" if (folder / "finished").exists() else ""
    return f"step {began or '-'}, saved {saved}{end}"


def _steps(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - SEARCHED, 0))
        text = file.read().decode(errors="replace")
    return ["{} of {}".format(*found) for found in STEP.findall(text)]


def _newest(folder: Path, pattern: str) -> list[Path]:
    files = filter(Path.is_file, folder.glob(pattern))
    return sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)


def _last_words(folder: Path) -> str:
    """Of the batch script: why there is no job any more."""
    for log in _newest(folder, BATCH)[:1]:
        lines = log.read_text(errors="replace").split("\n")
        return f"; {log.name}: {next(filter(None, reversed(lines)), '')}"
    return ""


def _asked(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        _end(f"no {command[0]} here: log in to the cluster")
    if done.returncode:
        _end(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout


def _end(reason: str) -> NoReturn:
    echo(reason, err=True)
    raise typer.Exit(2)
