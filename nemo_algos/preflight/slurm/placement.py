"""A config as a job runs it: its nodes and GPUs, its folders, its time, its user's modules."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from math import ceil, inf
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_algos.findings import Finding, at
from nemo_algos.preflight.check.rule import Preflight, note, warning
from nemo_algos.preflight.plan.layouts import Plan, gpu_of, plan
from nemo_algos.preflight.plan.nemo_rl_arguments import GPUS
from nemo_algos.preflight.slurm import batch
from nemo_algos.preflight.slurm.batch import OUTPUTS, Job

NAME = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_][\w.]*")
INSTALLED = ("site-packages", "dist-packages")
# planned steps, and seconds at least, after which a run has stalled
SLOWER = 10
HANGS = 1800


def unseen(plain: Mapping[str, Any], job: Job, folder: Path) -> Iterator[Finding]:
    """Modules that `check` has imported here, and that the job would not find.

    The job starts in the run's folder, then changes to NeMo-RL's root: of PYTHONPATH it only has
    absolute folders that are mounted at their own place.
    """
    mounted = batch.mounts(job, folder)
    searched = []
    for p in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        searched.append(os.path.normpath(p))
    for key, value in batch.texts(plain):
        named = NAME.fullmatch(value)
        home = _home(named[1]) if named else ""
        if not home or home in (str(batch.ROOT), str(job.program.parent)):
            continue
        if os.path.basename(home) in INSTALLED:
            yield warning(
                key,
                f"{value} is installed on this machine, in {home}. Make sure that the image has "
                "it, too.",
            )
            continue
        cures = [] if home in searched else [f"put PYTHONPATH={home} before the command"]
        if not batch.at_its_place(home, mounted):
            cures.append(f"add --mounts {home}:{home}")
        if cures:
            yield Finding(
                key,
                f"{value} is imported from {home}, where the job does not find it. To cure this, "
                f"{' and '.join(cures)}.",
            )


def _home(module: str) -> str:
    """The folder of sys.path that an imported module came from; empty for Python's own."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module.partition(".")[0] in sys.stdlib_module_names:
        return ""
    path = Path(file)
    return str(path.parents[module.count(".") + (path.name == "__init__.py")])


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
    decided: dict[str, Any] = {}
    for key, (_, value) in sizes.keys().items():
        decided[key] = value
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
        yield Finding(
            "checkpointing.enabled", "must be true, because the job resumes from checkpoints"
        )
    nodes = _nodes(job.partition)
    gpus = at(plain, "cluster.gpus_per_node")
    counts = set()
    for node in nodes:
        if node.gpus:
            counts.add(node.gpus)
    if counts and gpus not in counts:
        yield Finding(
            "cluster.gpus_per_node",
            f"it is {gpus}, but nodes here have {' or '.join(map(str, sorted(counts)))} GPUs. "
            "ray.sub takes all GPUs of a node: set that number.",
        )
    for option in job.options:
        asked = re.fullmatch(r"--(?:gres=gpu|gpus-per-node)\W(?:[a-z]\w*:)?(\d+)", option)
        if asked and int(asked[1]) != gpus:
            yield Finding(
                "cluster.gpus_per_node",
                f"it is {gpus}, but --sbatch={option} asks for {asked[1]} of a node. Change one.",
            )
    longest = max((node.limit for node in nodes), default=inf)
    if batch.seconds(job.time) > longest:
        yield Finding(
            "--time",
            f"{job.time} exceeds the partition's limit of {longest / 3600:g} hours, so the job "
            "would wait forever. Choose less.",
        )
    yield from batch.unmounted(plain, batch.mounts(job, folder))
    yield from unseen(plain, job, folder)


class Nodes(NamedTuple):
    """Of one kind in a partition: GPUs of each, 0 where Slurm knows of none; limit in seconds."""

    gpus: int
    limit: float


def _nodes(partition: str) -> list[Nodes]:
    """Of the partition, or the default one; none where no Slurm is to be asked."""
    if not shutil.which("sinfo"):
        return []
    command = ["sinfo", "--noheader", "--format=%P %l %G"]
    command += [f"--partition={partition}"] if partition else []
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    nodes = []
    for line in lines.splitlines():
        columns = line.split(maxsplit=2)
        if not partition and not columns[0].endswith("*"):
            continue
        _, limit, gres = columns
        longest = inf
        if limit not in ("infinite", "n/a"):
            longest = batch.seconds(limit)
        counts = re.findall(r"gpu:(?:[^\s:,(]+:)?(\d+)", gres)
        for count in counts or [0]:
            nodes.append(Nodes(int(count), longest))
    return nodes


def planned(run: Preflight) -> Plan | None:
    """The run by `plan`; None where it does not know the model, or not all of its parts."""
    if run.model is None:
        return None
    try:
        return plan(run.plain, run.model, GPUS[gpu_of(run.plain)])
    except ValueError:
        return None


def watched(job: Job, run: Preflight, p: Plan | None) -> tuple[Job, Finding | None]:
    """The job with a limit to the time without a step, and the note on it; as it is if that is set.

    The plan has no time for an environment's tools and turns: there the limit is off.
    """
    if job.stalled is not None:
        return job, None
    if p is None or (run["grpo.max_rollout_turns"] or 1) > 1:
        reason = "`plan` does not know this model" if p is None else "rollouts have several turns"
        return job._replace(stalled=0), note(
            "--stalled",
            f"it is off, because {reason}. Set the minutes after which a run without a new step "
            "is restarted.",
        )
    limit = 60 * ceil((max(SLOWER * p.step_seconds, HANGS) + 2 * _validation(run, p)) / 60)
    return job._replace(stalled=limit), note(
        "--stalled",
        f"a run without a new step for {limit // 60} minutes is restarted ({SLOWER} planned "
        f"steps, at least {HANGS // 60} minutes, and twice a validation). 0 turns this off.",
    )


def _validation(run: Preflight, p: Plan) -> float:
    """Seconds of a validation at most: each of its batches waits for its longest response."""
    if not any(run[f"grpo.{key}"] for key in ("val_period", "val_at_start", "val_at_end")):
        return 0.0
    size = run["grpo.val_batch_size"] or 1
    batches = ceil((run["grpo.max_val_samples"] or size) / size)
    responses = size * (run["grpo.val_num_generations_per_prompt"] or 1)
    step = run["grpo.num_prompts_per_step"] * run["grpo.num_generations_per_prompt"]
    return p.phases["generation"] * batches * max(1.0, responses / step)


def warnings(run: Preflight, job: Job, folder: Path, p: Plan | None) -> Iterator[Finding]:
    """What is probably not meant in a run without errors."""
    gpus = run.layout.gpus_per_node
    most = 4 if gpu_of(run.plain) == "GB200" else 8
    if gpus < most and not any(node.gpus for node in _nodes(job.partition)):
        yield warning(
            "cluster.gpus_per_node",
            f"the job takes whole nodes, but uses {gpus} GPUs of each. Set --gpus-per-node {most} "
            "if nodes have more.",
        )
    yield from batch.caches(batch.mounts(job, folder))
    tag = re.search(r":v?(\d+\.\d+\.\d+)$", job.image)
    if tag and run.nemo_rl.root and f"NeMo-RL {tag[1]}" not in run.nemo_rl.name:
        yield warning(
            "--image",
            f"it is version {tag[1]}, and {job.nemo_rl} is {run.nemo_rl.name}. Name a checkout of "
            "the image's version.",
        )
    for problem in p.misfits if p else ():
        yield warning("", f"{problem}, by `nemo-algos plan`, which says what would fit")
    step = p.step_seconds if p else 0.0
    if step > job.margin:
        yield warning(
            "--margin",
            f"{job.margin // 60} minutes are shorter than a step of about {step / 60:.0f} (plan), "
            "so the last step would be lost. Choose more.",
        )
    if step > batch.seconds(job.time) - job.margin:
        yield warning(
            "--time", f"a step of about {step / 60:.0f} minutes (plan) does not fit. Choose more."
        )
