"""A config as Slurm jobs: judged, with its batch script; see docs/slurm.md."""

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_algos.config import ConfigError, Finding, apply_overrides, at, read, select, set_at
from nemo_algos.preflight.check.judge import judge, refuse
from nemo_algos.preflight.check.release import is_checkout, shipped
from nemo_algos.preflight.check.release import read as read_checkout
from nemo_algos.preflight.slurm import batch, outputs, placement, rules
from nemo_algos.preflight.slurm.batch import Job
from nemo_algos.preflight.slurm.outputs import OUTPUTS
from nemo_algos.preflight.slurm.placement import Sizes

WHEN_SAVED = ("checkpoint_must_save_by", "save_period")
SHARED = {  # by two points of a sweep, and what to write instead
    "--sweep": "their values give the same file name",
    "checkpointing.checkpoint_dir": "add the key that differs to it, as in /x/${grpo.seed}",
    "logger.log_dir": "add the key that differs to it, as in /x/${grpo.seed}",
}


class Submission(NamedTuple):
    """A run for Slurm, which reads and writes in its folder; findings: warnings and notes."""

    folder: Path
    written: DictConfig
    script: str
    options: list[str]
    size: str
    findings: list[Finding]


def prepare(
    config: Path, overrides: Sequence[str], job: Job, folder: Path, sizes: Sizes
) -> Submission:
    """A run, checked and not yet on disk. Raises ConfigError with all that is wrong."""
    few = [Finding(o, f"must be at least 1, got {n}") for o, n in sizes.keys().values() if n < 1]
    there = is_checkout(job.nemo_rl)
    release = read_checkout(job.nemo_rl) if there else shipped()
    if wrong := [*rules.problems(job, folder), *few]:
        try:
            refuse(judge(apply_overrides(read(config), overrides), release)[1])
        except ConfigError as error:
            wrong += error.findings
        raise ConfigError(wrong)
    written = apply_overrides(placement.place(read(config), job, folder, sizes), overrides)
    written = outputs.absolute(written, folder)
    run, findings = judge(written, release, batch.seconds(job.time))
    plain = run.plain
    findings = refuse([*findings, *placement.problems(plain, job, folder, sizes)])
    for key in OUTPUTS:  # for train.py, which resolves nothing
        OmegaConf.update(written, key, at(plain, key))
    step = placement.step_seconds(run)
    job, watch = placement.watched(job, run, step)
    findings += [*placement.warnings(run, job, folder, step), *([watch] if watch else [])]
    options = batch.options(job, folder, plain)
    script = batch.script(job, folder, plain)
    return Submission(folder, written, script, options, batch.size(job, plain), findings)


def points(sweep: Sequence[str], overrides: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """The overrides of each run: a=1 b=3 and a=2 b=3 of `["a=1,2", "b=3"]`. Raises ConfigError."""
    split = [s.partition("=") for s in sweep]
    times = Counter(key.lstrip("+") for key, _, _ in split)
    times.update({o.partition("=")[0].lstrip("+") for o in overrides})
    wrong: list[Finding] = []
    for written, (key, _, text) in zip(sweep, split, strict=True):
        if not key or not all(_values(text)):
            wrong.append(Finding("--sweep", f"must be key=a,b, got {written!r}"))
        elif times[key.lstrip("+")] > 1:
            wrong.append(Finding("--sweep", f"{key} is set twice. Write all values once, key=a,b."))
    if wrong:
        raise ConfigError(wrong)
    return list(itertools.product(*([f"{k}={v}" for v in _values(text)] for k, _, text in split)))


def _values(text: str) -> list[str]:
    """Split at the commas outside of brackets and quotes."""
    values = [""]
    depth = 0
    quote = ""
    for letter in text:
        depth += (letter in "[{") - (letter in "]}") if not quote else 0
        if letter in "\"'":
            quote = "" if letter == quote else quote or letter
        if letter == "," and depth == 0 and not quote:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def apart(runs: Sequence[Submission]) -> None:
    """Raises ConfigError where two runs would write to one folder, or one is there already."""
    folders = {"--sweep": [str(run.folder) for run in runs]}
    for key in OUTPUTS:
        folders[key] = [str(Path(select(run.written, key)).resolve()) for run in runs]
    wrong = [
        Finding(option, f"{count} runs share {path}: {SHARED[option]}")
        for option, paths in folders.items()
        for path, count in Counter(paths).items()
        if count > 1
    ]
    for run in runs:
        config = run.folder / "config.yaml"
        if config.exists() and _training_part(read(config)) != _training_part(run.written):
            what = f"{run.folder} contains a run with another config"
            hint = "Choose another name, or continue with the same config."
            wrong.append(Finding("--name", f"{what}. {hint}"))
    if wrong:
        raise ConfigError(wrong)


def _training_part(written: DictConfig) -> Any:
    """The config without what says only when a run saves, and not what it trains."""
    plain: Any = OmegaConf.to_container(written)
    for key in WHEN_SAVED:
        set_at(plain, f"checkpointing.{key}", None)
    return plain
