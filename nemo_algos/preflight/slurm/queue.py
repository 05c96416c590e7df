"""What Slurm says of the jobs of runs, all in one question."""

import subprocess
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY")
ENDED += ("PREEMPTED", "REVOKED", "TIMEOUT")
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


def jobs(names: Iterable[str]) -> dict[str, list[QueuedJob]]:
    """Jobs of all users by name, the oldest first. Raises OSError where Slurm does not answer."""
    fields = ",".join(f"{name}:{width}|" for name, width in FIELDS.items())
    command = ["--noheader", "--states=all", f"--name={','.join(names)}", f"--Format={fields}"]
    found: defaultdict[str, list[QueuedJob]] = defaultdict(list)
    for line in run_command("squeue", *command).splitlines():
        job = QueuedJob(*_words(line))
        found[job.name].append(job)
    return {name: sorted(of, key=lambda job: int(job.number)) for name, of in found.items()}


def _words(line: str) -> list[str]:
    """Of a line, by the separators: squeue pads by bytes, so that widths are not letters."""
    words = [word.strip() for word in line.split("|")][:-1]
    if len(words) != len(FIELDS):
        reason = "this version of Slurm does not separate the fields of --Format"
        raise OSError(f"squeue: {line.strip()!r} cannot be read: {reason}")
    return words


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
        hint = "Try again when Slurm's controller is less busy."
        raise OSError(f"{command[0]} did not answer within {TIMEOUT} seconds. {hint}") from None
    except FileNotFoundError:
        raise OSError(f"{command[0]} not found: log in to the cluster") from None
    if done.returncode:
        said = done.stderr.strip().removeprefix(f"{command[0]}: ").removeprefix("error: ")
        raise OSError(f"{command[0]}: {said}")
    return done.stdout
