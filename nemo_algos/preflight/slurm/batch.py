"""A run as a batch script: sbatch's options, the variables of job.sh and ray.sub, mounted paths."""

import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_algos.config import repository_folder
from nemo_algos.engines.nemo.worker_env import ROOT
from nemo_algos.findings import Finding, at, set_at
from nemo_algos.preflight.check.release import shipped
from nemo_algos.preflight.check.rule import warning
from nemo_algos.preflight.check.rules.data import FILES

PROGRAM = ROOT / "examples" / "run_grpo_math.py"
LONGEST = 60 * (2**32 - 3)  # seconds: Slurm counts minutes in 32 bits, of which two have a meaning
SCRIPTS = repository_folder("scripts/slurm")
OUTPUTS = {"checkpointing.checkpoint_dir": "checkpoints", "logger.log_dir": "logs"}
CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "NRL_MEGATRON_CHECKPOINT_DIR")
EVERYWHERE = ("/", "/tmp", "/dev/shm")  # and so in the container


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
    return [*(f"{path}:{path}" for path in dict.fromkeys([ROOT, folder, program])), *job.mounts]


def checkpoints(job: Job, folder: Path, plain: Mapping[str, Any]) -> str:
    """Where they are outside the container."""
    return outside(str(at(plain, "checkpointing.checkpoint_dir")), mounts(job, folder))


def script(job: Job, folder: Path, plain: Mapping[str, Any]) -> str:
    """job.sh below sbatch's options and the variables that it and ray.sub read."""
    lines = []
    for option in options(job, folder, plain):
        lines.append(f"#SBATCH {shlex.quote(option)}")
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
    modules = os.environ.get("PYTHONPATH")
    if modules:  # of rewards, also where sbatch is called by hand
        variables["PYTHONPATH"] = modules
    for name, value in variables.items():
        lines.append(f"export {name}={shlex.quote(str(value))}")
    return "\n".join(["#!/bin/bash", *lines, "", (SCRIPTS / "job.sh").read_text()])


def _last_step(plain: Mapping[str, Any]) -> list[str]:
    """What the asynchronous trainer must have saved: it ends with status 0 after an error, too."""
    named = at(plain, "grpo.async_grpo.enabled") and not at(plain, "grpo.stop_at_validation_metric")
    if named:
        return [str(at(plain, "grpo.max_num_steps"))]
    return []


def options(job: Job, folder: Path, plain: Mapping[str, Any]) -> list[str]:
    """sbatch's options, in the script and on its command line, where no SBATCH_* beats them."""
    return [
        f"--job-name={job_name(folder)}",
        f"--account={job.account}",
        *([f"--partition={job.partition}"] if job.partition else []),
        f"--nodes={at(plain, 'cluster.num_nodes')}",
        f"--time={job.time}",
        "--exclusive",
        "--mem=0",  # all of it: where a cluster has a default, a whole node gets only that
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
    return (
        f"{nodes} node{'s' * (nodes > 1)} x {gpus} GPU{'s' * (gpus > 1)}, {job.time} a job: at "
        f"most {hours:g} GPU-hours{more if job.max_requeues else ''}"
    )


def absolute(written: DictConfig, folder: Path) -> DictConfig:
    """Relative files that are here, and outputs below the run's folder: a job starts elsewhere."""
    config = _found(OmegaConf.to_container(written))
    for key in OUTPUTS:
        value = at(config, key)
        if isinstance(value, str) and not value.startswith(("/", "$", "~")):
            set_at(config, key, str(folder / value))
    return OmegaConf.create(config)


def _found(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _found(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_found(one) for one in value]
    if isinstance(value, str) and _is_here(value):
        return os.path.abspath(value)
    return value


def _is_here(name: str) -> bool:
    """A file or a model's folder; not a prompt of NeMo-RL, which the job finds in its root."""
    path = Path(name)
    own = path.parent.as_posix() == "examples/prompts" and path.name in shipped().prompts
    known = path.suffix in FILES or name.startswith(("./", "../"))
    return not own and (known or os.path.isfile(f"{name}/config.json")) and os.path.exists(name)


def unmounted(plain: Mapping[str, Any], mounts: list[str]) -> Iterator[Finding]:
    """Outputs that would be lost with the container, inputs that it does not have."""
    for key in OUTPUTS:
        value = at(plain, key)
        if not isinstance(value, str) or not value.startswith("/"):
            yield Finding(key, f"must be an absolute path, got {value!r}")
            continue
        mode = _mode(value, mounts)
        if mode != "writable":
            where = "mounted read-only" if mode else "not in a mounted folder"
            yield Finding(
                key,
                f"{value} is {where}, so its content would be lost. Add --mounts HOST:CONTAINER "
                "for a folder above it.",
            )
    inputs = {value: key for key, value in reversed(list(texts(plain))) if key not in OUTPUTS}
    for value, key in reversed(inputs.items()):
        lacks = value.startswith("/") and value not in EVERYWHERE and not _mode(value, mounts)
        if lacks and os.path.exists(value):
            yield Finding(
                key,
                f"{value} exists here, but not in the container. Add --mounts {value}:{value}, or "
                "for a folder above it.",
            )


def texts(value: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """All texts of a config with their keys."""
    if isinstance(value, str):
        yield above, value
    pairs = value.items() if isinstance(value, Mapping) else ()
    for key, one in enumerate(value) if isinstance(value, list) else pairs:
        yield from texts(one, f"{above}.{key}" if above else str(key))


def _mode(path: str, mounts: list[str]) -> str:
    """Of the deepest mount above a path of the container: writable, readable, or none."""
    mount = _above(path, mounts)
    if not mount:
        return ""
    if "ro" in "+".join(mount[2:]).split("+"):
        return "readable"
    return "writable"


def at_its_place(path: str, mounts: list[str]) -> bool:
    """Whether a path of the host is the same file in the container."""
    return bool(_mode(path, mounts)) and outside(path, mounts) == path


def outside(path: str, mounts: list[str]) -> str:
    """A mounted path of the container as it is on the host."""
    source, target, *_ = _above(path, mounts) or ("/", "/")
    return os.path.normpath(f"{source}/{os.path.relpath(path, target)}")


def _above(path: str, mounts: list[str]) -> list[str]:
    """The parts of the deepest mount above a path of the container; none where it has none."""
    inside = PurePosixPath(os.path.normpath(path))
    split = [mount.split(":") for mount in mounts]
    above = [mount for mount in split if inside.is_relative_to(mount[1])]
    return max(above, key=lambda mount: len(PurePosixPath(mount[1]).parts), default=[])


def caches(mounts: list[str]) -> Iterator[Finding]:
    """Variables that name a folder which the container does not have."""
    for name in CACHES:
        path = os.environ.get(name, "")
        if path and not _mode(path, mounts):
            yield warning(
                name,
                f"{path} is not mounted, so every job fills it again. Add --mounts {path}:{path}.",
            )
