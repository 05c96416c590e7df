"""A config as Slurm jobs: checked, then a folder with the frozen config and one batch script, then
sbatch (docs/slurm.md).

The script is slurm_job.header over scripts/slurm/job.sh, which runs NeMo-RL's ray.sub.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_algos.config import ConfigError, Problem, at, overridden, read
from nemo_algos.scale import check, slurm_job, snapshot
from nemo_algos.scale.slurm_job import Job


class Run(NamedTuple):
    """All that a run reads and writes is in its folder."""

    folder: Path
    written: DictConfig
    script: str


def points(sweep: Sequence[str]) -> list[tuple[str, ...]]:
    """The overrides of each run: `["a=1,2", "b=3"]` as (a=1, b=3), (a=2, b=3); one () of none."""
    wrong = [Problem("--sweep", f"{s!r}: write it as key=a,b") for s in sweep if "=" not in s]
    if wrong:
        raise ConfigError(wrong)
    axes = [(key, values.split(",")) for key, _, values in (s.partition("=") for s in sweep)]
    return list(itertools.product(*([f"{k}={v}" for v in dict.fromkeys(vs)] for k, vs in axes)))


def prepare(
    config: Path, overrides: Sequence[str], job: Job, folder: Path, nodes: int | None, version: str
) -> Run:
    """A run, checked and not yet on disk. Raises ConfigError with all that is wrong."""
    problems = list(slurm_job.problems(job, folder))
    if problems:
        raise ConfigError([*problems, *_problems_of(config, overrides, version)])
    written = overridden(_located(read(config), job, folder, nodes), overrides)
    plain, problems = checked(written, version, slurm_job.seconds(job.time))
    if nodes and at(plain, "cluster.num_nodes") != nodes:
        message = f"is {at(plain, 'cluster.num_nodes')}, but --nodes is {nodes}"
        problems.append(Problem("cluster.num_nodes", message))
    if not at(plain, "checkpointing.enabled"):
        problems.append(Problem("checkpointing.enabled", "must be true: the job resumes from it"))
    if problems:
        raise ConfigError(problems)
    body = (slurm_job.SCRIPTS / "job.sh").read_text()
    return Run(folder, written, slurm_job.header(job, folder, plain) + body)


def checked(
    written: DictConfig, version: str, limit: int | None
) -> tuple[dict[str, Any], list[Problem]]:
    """NeMo-RL's config with ours over it, and the errors of `nemo-algos check`."""
    if written.get("engine") != "nemo_rl":
        raise ConfigError([Problem("engine", "must be nemo_rl")])
    shipped = snapshot.load(version)
    plain, own, problems = snapshot.compose(written, shipped)
    found = check.judged(plain, own, shipped, limit)
    return plain, [*problems, *(Problem(f.path, f.message) for f in found if f.severity == "error")]


def _located(written: DictConfig, job: Job, folder: Path, nodes: int | None) -> DictConfig:
    """What the job decides, below what the command line says."""
    decided = {
        "checkpointing.checkpoint_dir": str(folder / "checkpoints"),
        "checkpointing.checkpoint_must_save_by": slurm_job.save_by(job),
        "logger.log_dir": str(folder / "logs"),
        **({"cluster.num_nodes": nodes} if nodes else {}),
    }
    for key, value in decided.items():
        OmegaConf.update(written, key, value)
    return written


def _problems_of(config: Path, overrides: Sequence[str], version: str) -> list[Problem]:
    """Of the config alone."""
    try:
        return checked(overridden(read(config), overrides), version, None)[1]
    except ConfigError as error:
        return error.problems


def write(run: Run) -> Path:
    """Put the run in its folder; its script. Raises ConfigError where another one is there."""
    config, script = run.folder / "config.yaml", run.folder / "job.sh"
    text = OmegaConf.to_yaml(run.written)
    if config.exists() and config.read_text() != text:
        raise ConfigError([Problem("--name", f"{run.folder} holds a run of another config")])
    (run.folder / "logs").mkdir(parents=True, exist_ok=True)
    config.write_text(text)
    script.write_text(run.script)
    return script


def submit(script: Path, times: int) -> str:
    """`times` jobs, of which one runs at a time; sbatch's last answer. Raises OSError."""
    answer = ""
    for _ in range(times):
        done = subprocess.run(["sbatch", str(script)], capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"sbatch: {done.stderr.strip()}")
        answer = done.stdout.strip()
    return answer
