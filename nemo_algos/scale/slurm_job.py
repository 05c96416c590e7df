"""What a run needs of a Slurm cluster, what is wrong with it, and the head of its batch script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import nemo_algos
from nemo_algos.config import Problem, at

ROOT = Path(nemo_algos.__file__).parents[1]
PROGRAM = ROOT / "examples" / "run_grpo_math.py"
SCRIPTS = ROOT / "scripts" / "slurm"


class Job(NamedTuple):
    """What sbatch and ray.sub are told; `margin` in seconds, `options` of sbatch as they are."""

    account: str
    image: str
    nemo_rl: Path
    time: str = "4:00:00"
    margin: int = 900
    partition: str = ""
    mounts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    program: Path = PROGRAM


def seconds(time: str) -> int:
    """Of a limit as sbatch reads it: minutes[:seconds], hours:minutes:seconds, or
    days-hours[:minutes[:seconds]]. Raises ValueError."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", time)
    if match is None:
        raise ValueError(f"{time!r} is no time: write it as Slurm does, 4:00:00 or 2-12")
    days, clock = match.groups()
    parts = [int(part) for part in clock.split(":")]
    first = 3600 if days or len(parts) == 3 else 60
    return int(days or 0) * 86400 + sum(n * first // 60**i for i, n in enumerate(parts))


def save_by(job: Job) -> str:
    """DD:HH:MM:SS for NeMo-RL, which counts it from the end of loading and, unlike the signal,
    knows how long a step takes."""
    left = max(seconds(job.time) - job.margin, 0)
    return f"{left // 86400:02}:{left // 3600 % 24:02}:{left // 60 % 60:02}:{left % 60:02}"


def mounts(job: Job, folder: Path) -> str:
    """Of the container: our checkout, the program and the run's folder, at their own paths."""
    own = dict.fromkeys([ROOT, folder])
    if not job.program.is_relative_to(ROOT):
        own[job.program.parent] = None
    return ",".join([*(f"{path}:{path}" for path in own), *job.mounts])


def problems(job: Job, folder: Path) -> Iterator[Problem]:
    """What would let the job fail, as far as it is to be seen from here."""
    if not job.account:
        yield Problem("--account", "missing: name the Slurm account that pays")
    if not job.image:
        yield Problem("--image", "missing: name NeMo-RL's container image, or a .sqsh file of it")
    if job.image.endswith(".sqsh") and not Path(job.image).is_file():
        yield Problem("--image", f"no file {job.image}")
    if not (job.nemo_rl / "ray.sub").is_file():
        hint = "name a checkout of NeMo-RL, of the image's version"
        yield Problem("--nemo-rl", f"no ray.sub in {job.nemo_rl}: {hint}")
    if not job.program.is_file():
        yield Problem("--program", f"no file {job.program}")
    if not (SCRIPTS / "job.sh").is_file():
        yield Problem("", f"{ROOT} is no checkout of nemo_algos: run from one (docs/slurm.md)")
    try:
        if seconds(job.time) <= job.margin:
            yield Problem("--margin", f"{job.margin // 60} minutes is not less than --time")
    except ValueError as error:
        yield Problem("--time", str(error))
    for option, value in (("--image", job.image), ("--mounts", mounts(job, folder))):
        if re.search(r"\s", value):
            yield Problem(option, f"ray.sub does not quote paths: no space in {value}")


def header(job: Job, folder: Path, plain: Mapping[str, Any]) -> str:
    """The first lines of the batch script: options of Slurm, variables of job.sh and ray.sub."""
    lines = [f"#SBATCH {option}" for option in _options(job, folder, plain)]
    variables = {
        "RUN": folder,
        "RAY_SUB": job.nemo_rl / "ray.sub",
        "CONTAINER": job.image,
        "MOUNTS": mounts(job, folder),
        "GPUS_PER_NODE": at(plain, "cluster.gpus_per_node"),
        "COMMAND": shlex.join(["python", f"{SCRIPTS}/train.py", str(folder), str(job.program)]),
    }
    lines += [f"export {name}={shlex.quote(str(value))}" for name, value in variables.items()]
    return "\n".join(["#!/bin/bash", *lines, "", ""])


def _options(job: Job, folder: Path, plain: Mapping[str, Any]) -> list[str]:
    return [
        f"--job-name={folder.name}",
        f"--account={job.account}",
        *([f"--partition={job.partition}"] if job.partition else []),
        f"--nodes={at(plain, 'cluster.num_nodes')}",
        f"--time={job.time}",
        "--exclusive",
        "--dependency=singleton",  # two jobs of one run would write the same checkpoints
        "--requeue",
        "--open-mode=append",
        f"--signal=B:USR1@{job.margin}",
        f"--output={folder}/slurm-%j.log",
        *job.options,
    ]
