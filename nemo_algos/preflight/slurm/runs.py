"""The commands `nemo-algos slurm status | tail | stop RUN`, and what Slurm says of its jobs."""

import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from nemo_algos.jsonl import replace
from nemo_algos.preflight.slurm import attempts
from nemo_algos.terminal import echo

ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
)  # fmt: skip
TIMEOUT = 30  # seconds in which a command of Slurm answers
FIELDS = {  # squeue's, with their widths in bytes
    "jobid": 20,
    "name": 300,
    "username": 64,
    "state": 24,
    "reason": 64,
    "nodelist": 300,
    "restartcnt": 12,
    "timeused": 24,
    "timelimit": 24,
}
OUT = Path("runs/slurm")
LOOK = 15  # seconds between two questions to Slurm
LAST = 4000  # bytes of a log that `tail` begins with
Run = Annotated[str, typer.Argument(metavar="RUN", help="folder, or name below --out")]
Runs = Annotated[list[str], typer.Argument(metavar="RUN", help="folders, or names below --out")]
Listed = Annotated[list[str] | None, typer.Argument(metavar="RUN", help="default: all below --out")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="parent folder of the runs")]


class QueuedJob(NamedTuple):
    """A line of squeue."""

    number: str
    name: str
    user: str
    state: str
    reason: str
    nodes: str
    restarts: str
    elapsed: str
    limit: str

    @property
    def ended(self) -> bool:
        """It is only remembered."""
        return self.state in ENDED

    def __str__(self) -> str:
        now = f"{self.elapsed} of {self.limit} on {self.nodes}"
        if self.state == "PENDING":
            now = f"waits for {self.reason}"
        return f"job {self.number} {self.state}, {self.restarts} restarts, {now}"


def queued(names: Iterable[str]) -> dict[str, list[QueuedJob]]:
    """Jobs of all users by name, the oldest first. Raises OSError where Slurm does not answer."""
    fields = ",".join(f"{name}:{width}|" for name, width in FIELDS.items())
    command = ["--noheader", "--states=all", f"--name={','.join(names)}", f"--Format={fields}"]
    found: defaultdict[str, list[QueuedJob]] = defaultdict(list)
    for line in run_command("squeue", *command).splitlines():
        # by the separators: squeue pads by bytes, so that widths are not letters
        words = [word.strip() for word in line.split("|")][:-1]
        if len(words) != len(FIELDS):
            raise OSError(
                f"squeue: {line.strip()!r} cannot be read: this version of Slurm does not separate "
                "the fields of --Format"
            )
        job = QueuedJob(*words)
        found[job.name].append(job)
    return {name: sorted(of, key=lambda job: int(job.number)) for name, of in found.items()}


def past_states(names: Iterable[str]) -> dict[str, str]:
    """The last state of each name in Slurm's accounting; none where the cluster has none."""
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--starttime=now-30days"]
    command += [f"--name={','.join(names)}", "--format=JobName,State"]
    try:
        lines = run_command(*command).splitlines()
    except OSError:
        return {}
    return dict(line.split("|", 1) for line in lines)


def run_command(*command: str) -> str:
    """What a command of Slurm's answers. Raises OSError with what it complains of."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # as names of folders are read
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise OSError(
            f"{command[0]} did not answer within {TIMEOUT} seconds. Try again when Slurm's "
            "controller is less busy."
        ) from None
    except FileNotFoundError:
        raise OSError(f"{command[0]} not found: log in to the cluster") from None
    if done.returncode:
        said = done.stderr.strip().removeprefix(f"{command[0]}: ").removeprefix("error: ")
        raise OSError(f"{command[0]}: {said}")
    return done.stdout


def status(runs: Listed = None, out: Out = OUT) -> None:
    """The jobs of runs, how far they are, what they cost so far, and how they ended.

    A folder that cannot be read is said in its line, and makes the exit status 1.
    """
    folders = _folders(runs, out) if runs else list(filter(_is_run, sorted(out.glob("*"))))
    if not folders:
        raise ValueError(f"no run found in {out}. Name the runs, or their parent with --out.")
    names = {folder.resolve(): _job_name(folder) for folder in folders}
    found = queued(names.values())
    gone = [name for name in names.values() if name not in found]
    states = past_states(gone) if gone else {}
    unread = 0
    for folder, name in names.items():
        live = [job for job in found.get(name, []) if not job.ended]
        try:
            spent = attempts.gpu_hours(folder, any(job.state == "RUNNING" for job in live))
            echo(f"{folder.name}: {attempts.progress(folder)}, {spent:.1f} GPU-hours spent")
        except (OSError, ValueError) as error:
            unread += 1
            echo(f"{folder.name}: {error}")
            continue
        for job in live:
            echo(f"  {job}")
        if not live:
            last = found[name][-1] if name in found else None
            state = f"{last.state}, {last.reason}" if last else states.get(name, "")
            echo(f"  no job in the queue: {attempts.end(folder, state)}")
    if unread:
        raise typer.Exit(1)


def tail(run: Run, out: Out = OUT) -> None:
    """Follow a run's driver from attempt to attempt until no job is left, from its last lines on.

    Before the first attempt it follows the batch script.
    """
    (folder,) = _folders([run], out)
    shown = None
    offset = 0
    live = True
    while live:
        with suppress(OSError):  # where Slurm does not answer a job may still write
            live = bool(_live(folder))
        log = attempts.log(folder)
        if not (live or log):
            raise ValueError(f"{folder} has no log yet. See: nemo-algos slurm status {run}")
        if log and log != shown:
            echo(f"==> {log} <==", err=True)
            shown = log
            offset = max(log.stat().st_size - LAST, 0)
        for _ in range(LOOK if live else 1):
            offset = _show(shown, offset) if shown else 0
            time.sleep(1 if live else 0)


def _show(log: Path, offset: int) -> int:
    """Print what was written behind the offset; the new one."""
    with log.open("rb") as file:
        file.seek(offset)
        echo(file.read().decode(errors="replace"), nl=False)
        return file.tell()


def stop(
    runs: Runs,
    out: Out = OUT,
    save: Annotated[
        bool, typer.Option("--save", help="stop after the current step, and save")
    ] = False,
) -> None:
    """Cancel all jobs of a run, its chain too: what is not saved is lost without --save."""
    for folder in _folders(runs, out):
        jobs = _live(folder)
        going = []
        cancelled = []
        for job in jobs:
            if save and job.state != "PENDING":
                going.append(job.number)
            else:
                cancelled.append(job.number)
        if cancelled:
            run_command("scancel", *cancelled)
        if going:
            replace(folder / "stop", "for good\n")  # job.sh: a file with words ends the run
        said = [f"{' '.join(going)} will save after this step and stop"] if going else []
        said += [f"stopped {' '.join(cancelled)}"] if cancelled else []
        echo(f"{folder.name}: {', '.join(said) or 'no job to stop'}")


def _folders(runs: list[str], out: Path) -> list[Path]:
    found = [next(filter(_is_run, (Path(run), out / run)), None) for run in runs]
    unknown = []
    for run, folder in zip(runs, found, strict=True):
        if folder is None:
            unknown.append(run)
    if unknown:
        raise ValueError(
            f"run {', '.join(unknown)} not found. Give a run folder, or its name in {out} (--out)."
        )
    return [folder.resolve() for folder in found if folder]


def _is_run(folder: Path) -> bool:
    return (folder / "job.sh").is_file() and (folder / "config.yaml").is_file()


def _job_name(folder: Path) -> str:
    from nemo_algos.preflight.slurm.batch import job_name  # with all that judges configs

    return job_name(folder.resolve())


def _live(folder: Path) -> list[QueuedJob]:
    jobs = chain.from_iterable(queued([_job_name(folder)]).values())
    return [job for job in jobs if not job.ended]
