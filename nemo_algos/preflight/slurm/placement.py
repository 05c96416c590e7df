"""A config as a job runs it: its nodes and GPUs, its folders, its time."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from math import ceil, inf
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_algos.config import Finding, at
from nemo_algos.preflight.check.nemo_run import Preflight
from nemo_algos.preflight.check.rule import note, warning
from nemo_algos.preflight.plan.gpus import GPUS
from nemo_algos.preflight.plan.layouts import gpu_of, plan
from nemo_algos.preflight.slurm import batch, modules, outputs
from nemo_algos.preflight.slurm.batch import Job
from nemo_algos.preflight.slurm.outputs import OUTPUTS

# planned steps, and seconds at least, after which a run has stalled
SLOWER = 10
HANGS = 1800


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


def place(written: DictConfig, job: Job, folder: Path, sizes: Sizes) -> DictConfig:
    """With what the job decides: over what the file says, below what the command line says."""
    decided: dict[str, Any] = {key: value for key, (_, value) in sizes.keys().items()}
    decided["checkpointing.checkpoint_must_save_by"] = batch.save_by(job)
    plain: Any = OmegaConf.to_container(written)
    for key, name in OUTPUTS.items():  # in place of relative ones, which are below NeMo-RL's root
        if not str(at(plain, key)).startswith(("/", "$")):
            decided[key] = str(folder / name)
    for key, value in decided.items():
        OmegaConf.update(written, key, value)
    return written


def problems(plain: Mapping[str, Any], job: Job, folder: Path, sizes: Sizes) -> Iterator[Finding]:
    """What contradicts the job in the whole config, resolved."""
    for key, (option, value) in sizes.keys().items():
        if at(plain, key) != value:
            yield Finding(key, f"it is {at(plain, key)}, but {option} is {value}. Change one.")
    if not at(plain, "checkpointing.enabled"):
        reason = "the job resumes from checkpoints"
        yield Finding("checkpointing.enabled", f"must be true, because {reason}")
    nodes = _nodes(job.partition)
    gpus = at(plain, "cluster.gpus_per_node")
    if counts := {node.gpus for node in nodes if node.gpus}:
        what = f"it is {gpus}, but nodes here have {' or '.join(map(str, sorted(counts)))} GPUs"
        if gpus not in counts:
            cure = "ray.sub takes all GPUs of a node: set that number."
            yield Finding("cluster.gpus_per_node", f"{what}. {cure}")
    longest = max((node.limit for node in nodes), default=inf)
    if batch.seconds(job.time) > longest:
        what = f"{job.time} exceeds the partition's limit of {longest / 3600:g} hours"
        yield Finding("--time", f"{what}, so the job would wait forever. Choose less.")
    yield from outputs.unmounted(plain, batch.mounts(job, folder))
    yield from modules.unseen(plain, job, folder)


class Nodes(NamedTuple):
    """Of one kind in a partition: GPUs of each, 0 where Slurm knows of none; limit in seconds."""

    gpus: int
    limit: float


def _nodes(partition: str) -> list[Nodes]:
    """Of the partition, or the default one; none where no Slurm is to be asked."""
    if not shutil.which("sinfo"):
        return []
    chosen = [f"--partition={partition}"] if partition else []
    command = ["sinfo", "--noheader", "--format=%P %l %G", *chosen]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    parts = [line.split(maxsplit=2) for line in lines.splitlines()]
    own = [part for part in parts if partition or part[0].endswith("*")]
    counts = r"gpu:(?:[^\s:,(]+:)?(\d+)"
    return [
        Nodes(int(n), _limit(limit))
        for _, limit, gres in own
        for n in re.findall(counts, gres) or [0]
    ]


def _limit(text: str) -> float:
    """Seconds of a partition's limit, as sinfo writes it."""
    return inf if text in ("infinite", "n/a") else batch.seconds(text)


def step_seconds(run: Preflight) -> float:
    """Of a step, by `plan`; 0 where it does not know the model, or not all of its parts."""
    if run.model is None:
        return 0.0
    try:
        return plan(run.plain, run.model, GPUS[gpu_of(run.plain)]).step_seconds
    except ValueError:
        return 0.0


def watched(job: Job, run: Preflight, step: float) -> tuple[Job, Finding | None]:
    """The job with a limit to the time without a step, and the note on it; as it is if that is set.

    The plan has no time for an environment's tools and turns: there the limit is off.
    """
    if job.stalled is not None:
        return job, None
    if not step or (run["grpo.max_rollout_turns"] or 1) > 1:
        reason = "`plan` does not know this model" if not step else "rollouts have several turns"
        what = f"it is off, because {reason}"
        cure = "Set the minutes after which a run without a new step is restarted."
        return job._replace(stalled=0), note("--stalled", f"{what}. {cure}")
    limit = 60 * ceil(max(SLOWER * step, HANGS) / 60)
    what = f"a run without a new step for {limit // 60} minutes is restarted"
    reason = f"{SLOWER} planned steps, at least {HANGS // 60} minutes"
    return job._replace(stalled=limit), note("--stalled", f"{what} ({reason}). 0 turns this off.")


def warnings(run: Preflight, job: Job, folder: Path, step: float) -> Iterator[Finding]:
    """What is probably not meant in a run without errors; step: its seconds by `plan`."""
    gpus = run.layout.gpus_per_node
    most = 4 if gpu_of(run.plain) == "GB200" else 8
    if gpus < most and not any(node.gpus for node in _nodes(job.partition)):
        what = f"the job takes whole nodes, but uses {gpus} GPUs of each"
        cure = f"Set --gpus-per-node {most} if nodes have more."
        yield warning("cluster.gpus_per_node", f"{what}. {cure}")
    yield from outputs.caches(batch.mounts(job, folder))
    limit = batch.seconds(job.time)
    if step > job.margin:
        what = f"{job.margin // 60} minutes are shorter than a step of about {step / 60:.0f}"
        yield warning("--margin", f"{what} (plan), so the last step would be lost. Choose more.")
    if step > limit - job.margin:
        what = f"a step of about {step / 60:.0f} minutes (plan) does not fit"
        yield warning("--time", f"{what}. Choose more.")
