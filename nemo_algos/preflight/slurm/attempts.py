"""What a run has done, as its folder tells: attempts, GPU-hours, steps begun and saved."""

import re
import shlex
import time
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

DRIVER = "logs/*-logs/ray-driver.log"
BATCH = "slurm-*.log"
LINE = re.compile(r"(\S+) (\d{1,12}) (\d{1,6}) (\d{1,6}) (\w+) \d{1,12}")  # of `attempts`
STEP = re.compile(r"=+ Step (\d+)/(\d+) =+")  # NeMo-RL's line before each step
OTHERS = re.compile(r"\+|srun:|slurmstepd|$")  # lines of a batch log that are not job.sh's
SEARCHED = 1 << 20  # bytes at the end of a log
ENDS = {  # job.sh's word: a person's
    "finished": "training is complete",
    "stopped": "saved and stopped on request",
    "cancelled": "cancelled",
    "requeued": "requeued by Slurm",
    "saved": "saved, but not finished",
    "preempted": "preempted",
    "nodes": "ended because of bad nodes",
    "limit": "ended at the time limit",
    "stalled": "ended because no step was made",
    "failed": "failed",
}


def last_saved_step(checkpoints: Path) -> int:
    """The last whole one, 0 where there is none: NeMo-RL writes training_info.json into each."""
    names = []
    for file in checkpoints.glob("step_*/training_info.json"):
        names.append(file.parent.name[5:])
    return max((int(name) for name in names if name.isdecimal()), default=0)


class Noted(NamedTuple):
    """A start or an end of an attempt, which is JOB or JOB-RESTART, by job.sh."""

    attempt: str
    time: int
    nodes: int
    gpus: int
    what: str


def read_attempts(run: Path) -> list[Noted]:
    """All of them, the oldest first. Raises ValueError for a line that job.sh did not write.

    A line of fewer words was cut short while it was written, and does not count.
    """
    file = run / "attempts"
    text = file.read_text(errors="replace") if file.exists() else ""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if len(line.split()) < 6:
            continue
        match = LINE.fullmatch(line)
        if match is None or match[5] not in ("start", *ENDS):
            raise ValueError(
                f"{file}, line {number}: {line[:80]!r} was not written by a job. Remove the line, "
                "or the folder if it is not a run of yours."
            )
        found.append(Noted(match[1], int(match[2]), int(match[3]), int(match[4]), match[5]))
    return found


def gpu_hours(run: Path, running: bool) -> float:
    """Spent until now. An attempt that Slurm ended unseen ended with its driver's last word."""
    lines = read_attempts(run)
    spent = 0.0
    for line, after in zip_longest(lines, lines[1:]):
        if line.what == "start":
            if after and after.attempt == line.attempt:
                end = after.time
            elif running and not after:
                end = time.time()
            else:
                log = run / "logs" / f"{line.attempt}-logs" / "ray-driver.log"
                end = max(log.stat().st_mtime, line.time) if log.exists() else line.time
            spent += (end - line.time) * line.nodes * line.gpus
    return spent / 3600


def newest(run: Path, pattern: str) -> list[Path]:
    """Files of the run, the one written last first."""
    files = filter(Path.is_file, run.glob(pattern))
    return sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)


def log(run: Path) -> Path | None:
    """The last driver's, or the batch script's before there is one."""
    return next(iter([*newest(run, DRIVER), *newest(run, BATCH)]), None)


def progress(run: Path) -> str:
    """The step begun last, the age of the driver's last line, and the step saved last."""
    logs = newest(run, DRIVER)
    began = next((step for log in logs for step in _steps(log)[-1:]), "-")
    saved = f"saved {last_saved_step(_checkpoints(run / 'job.sh'))}"
    if (run / "finished").exists():
        return f"step {began}, {saved}, finished"
    if not logs:
        return f"step {began}, {saved}"
    age = max(time.time() - logs[0].stat().st_mtime, 0)
    ago = f"{age / 60:.0f} min" if age < 7200 else f"{age / 3600:.0f} h"
    return f"step {began} (last line {ago} ago), {saved}"


def _checkpoints(script: Path) -> Path:
    """Where the run's batch script says that they are. Raises ValueError for an open quote."""
    text = script.read_bytes().decode(errors="surrogateescape")  # as paths are read
    given = re.findall("^export CHECKPOINTS=(.*)$", text, re.MULTILINE)
    try:
        if given:
            return Path(*shlex.split(given[0]))
        return script.parent / "checkpoints"
    except ValueError as error:
        raise ValueError(
            f"{script}: CHECKPOINTS={given[0][:80]!r}: {error}. Write the run again: nemo-algos "
            "slurm CONFIG."
        ) from None


def _steps(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - SEARCHED, 0))
        text = file.read().decode(errors="replace")
    return [f"{step} of {steps}" for step, steps in STEP.findall(text)]


def end(run: Path, state: str) -> str:
    """How the last attempt ended; `state` is Slurm's, for one that job.sh did not see end."""
    what = next((line.what for line in reversed(read_attempts(run))), "start")
    if what == "start":
        if state:
            return f"Slurm reports {state}"
        return "Slurm has no record of how it ended"
    said = ENDS[what]
    for log in newest(run, DRIVER if what == "failed" else BATCH)[:1]:
        lines = (line.strip() for line in log.read_text(errors="replace").splitlines())
        words = [line for line in lines if not OTHERS.match(line)]
        if words and what != "finished":
            said += f"; {log.name}: {words[-1]}"
    return said
