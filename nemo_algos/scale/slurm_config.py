"""A config as a job runs it: its paths in the container, its nodes and GPUs, its time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_algos.config import Problem, at
from nemo_algos.scale import slurm_job
from nemo_algos.scale.hardware import GPUS
from nemo_algos.scale.models import model
from nemo_algos.scale.plan import gpu_of, plan
from nemo_algos.scale.rules import Finding, warning
from nemo_algos.scale.rules_data import FILES, PROMPTS
from nemo_algos.scale.slurm_job import Job

OUTPUTS = {"checkpointing.checkpoint_dir": "checkpoints", "logger.log_dir": "logs"}
CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "NRL_MEGATRON_CHECKPOINT_DIR")
EVERYWHERE = ("/", "/tmp", "/dev/shm")  # and so in the container


class Sizes(NamedTuple):
    """What --nodes and --gpus-per-node say."""

    nodes: int | None = None
    gpus_per_node: int | None = None

    def keys(self) -> dict[str, tuple[str, int]]:
        """Option and value of each key that is set."""
        named = {
            "cluster.num_nodes": ("--nodes", self.nodes),
            "cluster.gpus_per_node": ("--gpus-per-node", self.gpus_per_node),
        }
        return {key: (o, value) for key, (o, value) in named.items() if value is not None}


def located(written: DictConfig, job: Job, folder: Path, sizes: Sizes) -> DictConfig:
    """With what the job decides: over what the file says, below what the command line says."""
    decided: dict[str, Any] = {key: value for key, (_, value) in sizes.keys().items()}
    decided["checkpointing.checkpoint_must_save_by"] = slurm_job.save_by(job)
    for key, name in OUTPUTS.items():
        own = OmegaConf.select(written, key, throw_on_resolution_failure=False)
        if not str(own).startswith("/"):
            decided[key] = str(folder / name)
    for key, value in decided.items():
        OmegaConf.update(written, key, value)
    return written


def absolute(written: DictConfig, folder: Path) -> DictConfig:
    """Relative files that are here, and outputs below the run's folder: a job starts elsewhere."""
    config = _found(OmegaConf.to_container(written))
    for key in OUTPUTS:
        section, value = at(config, key.partition(".")[0]), at(config, key)
        if isinstance(value, str) and not value.startswith(("/", "$")):
            section[key.partition(".")[2]] = str(folder / value)
    return OmegaConf.create(config)


def _found(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _found(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_found(one) for one in value]
    return os.path.abspath(value) if isinstance(value, str) and _is_here(value) else value


def _is_here(name: str) -> bool:
    """A file or a model's folder; not a prompt of NeMo-RL, which the job finds in its root."""
    path = Path(name)
    own = path.parent.as_posix() == "examples/prompts" and path.name in PROMPTS
    known = path.suffix in FILES or name.startswith(("./", "../"))
    return not own and (known or os.path.isfile(f"{name}/config.json")) and os.path.exists(name)


def problems(plain: Mapping[str, Any], job: Job, folder: Path, sizes: Sizes) -> Iterator[Problem]:
    """Of the whole config, resolved."""
    for key, (option, value) in sizes.keys().items():
        if at(plain, key) != value:
            yield Problem(key, f"is {at(plain, key)}, but {option} is {value}")
    if not at(plain, "checkpointing.enabled"):
        yield Problem("checkpointing.enabled", "must be true: the job resumes from it")
    nodes, gpus = node_gpus(job.partition), at(plain, "cluster.gpus_per_node")
    if nodes and gpus not in nodes:
        what = f"is {gpus}, but a node here has {' or '.join(map(str, sorted(nodes)))}"
        yield Problem("cluster.gpus_per_node", f"{what}, all of which ray.sub takes: change it")
    yield from _unmounted(plain, slurm_job.mounts(job, folder))


def _unmounted(plain: Mapping[str, Any], mounts: list[str]) -> Iterator[Problem]:
    for key in OUTPUTS:
        value = at(plain, key)
        if not isinstance(value, str) or not value.startswith("/"):
            yield Problem(key, f"is {value}: name a folder by its absolute path")
        elif (mode := _mode(value, mounts)) != "writable":
            where = "mounted to be read" if mode else "in no folder that is mounted"
            hint = "add --mounts HOST:CONTAINER of a folder above it"
            yield Problem(key, f"{value} is {where}, and would be lost: {hint}")
    inputs = {value: key for key, value in reversed(list(_texts(plain))) if key not in OUTPUTS}
    for value, key in reversed(inputs.items()):
        lacks = value.startswith("/") and value not in EVERYWHERE and not _mode(value, mounts)
        if lacks and os.path.exists(value):
            hint = f"add --mounts {value}:{value}, or of a folder above it"
            yield Problem(key, f"{value} is here, but not in the container: {hint}")


def _texts(value: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Every text of a config and its key."""
    if isinstance(value, str):
        yield above, value
    pairs = value.items() if isinstance(value, Mapping) else ()
    for key, one in enumerate(value) if isinstance(value, list) else pairs:
        yield from _texts(one, f"{above}.{key}" if above else str(key))


def _mode(path: str, mounts: list[str]) -> str:
    """Of the deepest mount above a path of the container: writable, readable, or none."""
    inside = PurePosixPath(os.path.normpath(path))
    above = [m for m in (mount.split(":") for mount in mounts) if inside.is_relative_to(m[1])]
    if not above:
        return ""
    flags = max(above, key=lambda mount: len(PurePosixPath(mount[1]).parts))[2:]
    return "readable" if "ro" in "+".join(flags).split("+") else "writable"


def node_gpus(partition: str) -> set[int]:
    """GPUs of a node, one number for each kind of node; empty where no Slurm is to be asked."""
    if not shutil.which("sinfo"):
        return set()
    chosen = [f"--partition={partition}"] if partition else []
    command = ["sinfo", "--noheader", "--format=%P %G", *chosen]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return set()
    own = [line for line in lines.splitlines() if partition or line.split()[0].endswith("*")]
    return {int(count) for count in re.findall(r"gpu:(?:[^\s:,(]+:)?(\d+)", "\n".join(own))}


def warnings(plain: Mapping[str, Any], job: Job, folder: Path) -> Iterator[Finding]:
    """Of a config without problems."""
    gpus, most = at(plain, "cluster.gpus_per_node"), 4 if gpu_of(plain) == "GB200" else 8
    if gpus < most and not node_gpus(job.partition):
        what = f"the job takes whole nodes and uses {gpus} GPUs of each"
        yield warning("cluster.gpus_per_node", f"{what}: --gpus-per-node {most} if they have more")
    mounts = slurm_job.mounts(job, folder)
    for name in CACHES:
        path = os.environ.get(name, "")
        if path and not _mode(path, mounts):
            hint = f"add --mounts {path}:{path}"
            yield warning(name, f"{path} is not mounted, and every job fills it anew: {hint}")
    step, limit = _step_seconds(plain), slurm_job.seconds(job.time)
    if step > job.margin:
        what = f"{job.margin // 60} minutes, but a step takes about {step / 60:.0f} (plan)"
        yield warning("--margin", f"{what}: choose more, or the last step is not saved")
    if step > limit - job.margin:
        yield warning("--time", f"a step of about {step / 60:.0f} minutes (plan) does not fit")


def _step_seconds(plain: Mapping[str, Any]) -> float:
    """By `nemo-algos plan`; 0 of a model that it does not know."""
    try:
        facts = model(str(at(plain, "policy.model_name")))
        return plan(plain, facts, GPUS[gpu_of(plain)]).step_seconds
    except (ValueError, OSError):
        return 0.0
