"""A run as a batch script: sbatch's options and the variables of job.sh and ray.sub."""

import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nemo_algos.config import at, repository_folder
from nemo_algos.engines.nemo.worker_env import ROOT
from nemo_algos.preflight.slurm import outputs

PROGRAM = ROOT / "examples" / "run_grpo_math.py"
LONGEST = 60 * (2**32 - 3)  # seconds: Slurm counts minutes in 32 bits, of which two have a meaning
SCRIPTS = repository_folder("scripts/slurm")


class Job(NamedTuple):
    """What sbatch, job.sh and ray.sub are told; `options` of sbatch as they are.

    `margin` and `stalled` are in seconds; a `stalled` of 0 is never, None is for the plan to say.
    """

    account: str
    image: str
    nemo_rl: Path
    time: str = "4:00:00"
    margin: int = 900
    partition: str = ""
    mounts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    program: Path = PROGRAM
    max_requeues: int = 20
    retries: int = 0
    stalled: int | None = None


def seconds(time: str) -> int:
    """Seconds of M[:S], H:M:S or D-H[:M[:S]], as sbatch reads it. Raises ValueError for others."""
    match = re.fullmatch(r"(?:([0-9]+)-)?([0-9]+(?::[0-9]+){0,2})", time)
    if match is None:
        raise ValueError(f"must be a Slurm time, such as 4:00:00 or 2-12, got {time!r}")
    days, clock = match.groups()
    parts = [int(part) for part in clock.split(":")]
    first = 3600 if days or len(parts) == 3 else 60
    total = int(days or 0) * 86400 + sum(n * first // 60**i for i, n in enumerate(parts))
    if total > LONGEST:
        raise ValueError(f"must be at most {LONGEST // 86400} days, got {time}")
    return total


def save_by(job: Job) -> str:
    """DD:HH:MM:SS for NeMo-RL, which, unlike the signal, knows how long a step takes."""
    left = max(seconds(job.time) - job.margin, 0)
    return f"{left // 86400:02}:{left // 3600 % 24:02}:{left // 60 % 60:02}:{left % 60:02}"


def job_name(folder: Path) -> str:
    """The name by which Slurm tells the jobs of a run from another's."""
    return f"{folder.name}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:6]}"


def mounts(job: Job, folder: Path) -> list[str]:
    """The checkout, the program and the run's folder, at their own paths in the container."""
    program = ROOT if job.program.is_relative_to(ROOT) else job.program.parent
    own = dict.fromkeys([ROOT, folder, program])
    return [*(f"{path}:{path}" for path in own), *job.mounts]


def checkpoints(job: Job, folder: Path, plain: Mapping[str, Any]) -> str:
    """Where they are outside the container."""
    return outputs.outside(str(at(plain, "checkpointing.checkpoint_dir")), mounts(job, folder))


def script(job: Job, folder: Path, plain: Mapping[str, Any]) -> str:
    """job.sh below sbatch's options and the variables that it and ray.sub read."""
    lines = [f"#SBATCH {shlex.quote(option)}" for option in options(job, folder, plain)]
    words = [f"{SCRIPTS}/train.py", str(folder), str(job.program), *_last_step(plain)]
    variables = {
        "RUN": folder,
        "RAY_SUB": job.nemo_rl / "ray.sub",
        "CONTAINER": job.image,
        "MOUNTS": ",".join(mounts(job, folder)),
        "GPUS_PER_NODE": at(plain, "cluster.gpus_per_node"),
        "MAX_REQUEUES": job.max_requeues,
        "RETRIES": job.retries,
        "STALLED": job.stalled or 0,
        "SCRIPTS": SCRIPTS,
        "CHECKPOINTS": checkpoints(job, folder, plain),
        "COMMAND": shlex.join(["python", "-u", *words]),  # -u: watch.sh and `status` read its log
    }
    if modules := os.environ.get("PYTHONPATH"):  # of rewards, also where sbatch is called by hand
        variables["PYTHONPATH"] = modules
    lines += [f"export {name}={shlex.quote(str(value))}" for name, value in variables.items()]
    return "\n".join(["#!/bin/bash", *lines, "", (SCRIPTS / "job.sh").read_text()])


def _last_step(plain: Mapping[str, Any]) -> list[str]:
    """What the asynchronous trainer must have saved: it ends with status 0 after an error, too."""
    early = at(plain, "grpo.stop_at_validation_metric")
    if not at(plain, "grpo.async_grpo.enabled") or early:
        return []
    return [str(at(plain, "grpo.max_num_steps"))]


def options(job: Job, folder: Path, plain: Mapping[str, Any]) -> list[str]:
    """sbatch's options, in the script and on its command line, where no SBATCH_* beats them."""
    return [
        f"--job-name={job_name(folder)}",
        f"--account={job.account}",
        *([f"--partition={job.partition}"] if job.partition else []),
        f"--nodes={at(plain, 'cluster.num_nodes')}",
        f"--time={job.time}",
        "--exclusive",
        "--export=ALL",
        "--dependency=singleton",  # two jobs of one run would write the same checkpoints
        "--requeue",
        "--open-mode=append",
        f"--signal=B:USR1@{job.margin}",
        f"--output={folder}/slurm-%j.log",
        *job.options,
    ]


def size(job: Job, plain: Mapping[str, Any]) -> str:
    """What a job takes at most, for a person."""
    nodes = at(plain, "cluster.num_nodes")
    gpus = at(plain, "cluster.gpus_per_node")
    hours = nodes * gpus * seconds(job.time) / 3600
    more = f" ({hours * (job.max_requeues + 1):g} with {job.max_requeues} requeues)"
    each = f"{nodes} node{'s' * (nodes > 1)} x {gpus} GPU{'s' * (gpus > 1)}, {job.time} a job"
    return f"{each}: at most {hours:g} GPU-hours{more if job.max_requeues else ''}"
