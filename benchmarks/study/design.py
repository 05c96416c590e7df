"""A study's design: regimes, each of some arms, each of some seeds; and the runs that they need.

    settings: {grpo.max_num_steps: 120}       # of every run
    regimes:
      staleness_8:
        claim: QUATRO stays stable ...         # what a paper says
        baseline: GRPO                         # the arm that the others are compared with
        seeds: 10
        settings: {grpo.num_update_epochs: 2}
        arms:
          GRPO: {}                             # the shipped grpo.yaml
          without macro: {config: etr.yaml, method.macro: 0.0}

Two arms of one config, written alike, are one run, whatever their regimes and names.
"""

import csv
import hashlib
import json
import re
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import walks  # noqa: F401 its tasks, before a config names them
from omegaconf import DictConfig
from planted import Planted
from pydantic import Field, model_validator

from nemo_algos import config
from nemo_algos.engines.local.hardware import device_of, threads_of
from nemo_algos.engines.local.schema import SHAPES, LocalConfig, Section
from nemo_algos.findings import ConfigError, Finding, validate
from nemo_algos.preflight.check.local.judge import parse

Settings = dict[str, Any]  # key.path: value
Run = tuple[LocalConfig, Planted | None]
STOP = "stop_at_validation_"
EVALUATIONS = {"val_period", "val_at_start", "val_at_end", f"{STOP}metric", f"{STOP}threshold"}
DECIDE_NOTHING = {"logger": True, "checkpointing": True, "grpo": EVALUATIONS}  # in a study
IN_A_REPORT = {
    *[
        "title",
        "claim",
        "baseline",
        "arms",
        "settings",
        "seeds",
        "first_seed",
        "exploratory",
        "column",
        "bases",
    ]
}


class Round(Section):
    """A round of tuning: `keep` of the candidates go on. steps: shorter runs than the regime's."""

    seeds: int = Field(default=3, gt=0)
    steps: int | None = Field(default=None, gt=0)
    keep: int = Field(default=1, gt=0)


Grid = dict[str, Annotated[list[Any], Field(min_length=2)]]  # key: values


class Tuning(Section):
    """Each arm gets the values of these keys that end with the highest training reward, seeds 0 on.

    grid: of every arm; knobs: further keys of an arm. rounds: successive halving.
    """

    grid: Grid = Field(min_length=1)
    knobs: dict[str, Grid] = Field(default={})
    rounds: list[Round] = Field(default=[Round()], min_length=1)

    @property
    def seeds(self) -> int:
        """The seeds from 0 on that tuning has seen."""
        return max(r.seeds for r in self.rounds)


class Regime(Section):
    """Arms that are compared with a baseline.

    title: of its figures; claim: of a paper, and where; seeds: how many, from first_seed on;
    exploratory: without a hypothesis fixed beforehand; column: of the survival map (survival.py).
    bases: so many taught models in turn, seed by seed; 0: the one that every run starts from.
    tuned_as: a regime whose tuned values its arms of the same names take.
    """

    title: str = ""
    claim: str
    baseline: str
    arms: dict[str, Settings] = Field(min_length=2)
    settings: Settings = Field(default={})
    seeds: int = Field(default=5, gt=0)
    first_seed: int = Field(default=0, ge=0)
    exploratory: bool = False
    column: str = ""
    bases: int = Field(default=0, ge=0)
    tune: Tuning | None = None
    tuned_as: str = ""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.baseline not in self.arms:
            raise ValueError(f"baseline={self.baseline} must be one of the arms")
        if self.tune and self.first_seed < self.tune.seeds:
            reason = f"first_seed={self.first_seed} is one of the {self.tune.seeds} tuning seeds"
            raise ValueError(f"{reason}. Set first_seed to {self.tune.seeds} or more.")
        if unknown := {*(self.tune.knobs if self.tune else ())} - {*self.arms}:
            raise ValueError(f"tune.knobs has no arm {min(unknown)}. Use one of the arms.")
        return self


class Confirm(Section):
    """What is tested: these metrics of these arms, in every regime that is not exploratory."""

    arms: list[str] = Field(min_length=1)
    metrics: list[str] = Field(min_length=1)


class Study(Section):
    """The whole file. path: steps between evaluations on the way; 0: at the end only."""

    regimes: dict[str, Regime] = Field(min_length=1)
    settings: Settings = Field(default={})
    confirm: Confirm | None = None
    path: int = Field(default=0, ge=0)
    workers: int = Field(default=2, gt=0)
    out: str = "runs/study"

    @model_validator(mode="after")
    def _no_regime_is_anothers_tuning(self) -> Self:
        tuned = {name: r.tune for name, r in self.regimes.items() if r.tune}
        taken = {tuning_of(n, i) for n, t in tuned.items() for i in range(len(t.rounds))}
        if taken := taken & {*self.regimes}:
            what = f"the name {', '.join(sorted(taken))} is reserved for tuning"
            raise ValueError(f"{what}. Rename the regime.")
        for name, regime in self.regimes.items():
            if regime.tuned_as and regime.tuned_as not in tuned:
                what = f"regimes.{name}.tuned_as={regime.tuned_as} is not a regime with `tune`"
                raise ValueError(
                    f"{what}. Use one of {', '.join(tuned) or 'those (there is none)'}."
                )
        return self


def in_files(arm: str) -> str:
    """An arm's name in the names of files: Clip-High -> clip_high, of clip_high.yaml."""
    return re.sub(r"[^\w./]+", "_", arm.lower())


def tuning_of(regime: str, index: int = 0) -> str:
    """The name of the regime that a round of its `tune` makes."""
    return f"{regime}_tuning" + (f"_{index + 1}" if index else "")


class Trial(NamedTuple):
    """One training run. id: a hash of its config as it is written (not of this code's version).

    planted: what makes its sampler another than its trainer.
    """

    id: str
    config: LocalConfig
    planted: Planted | None = None


class StudyCell(NamedTuple):
    """An arm of a regime with one seed, from one taught model; the run that gives its result."""

    regime: str
    arm: str
    seed: int
    run: str
    base: int = 0


def runs(study: Study) -> tuple[list[Trial], list[StudyCell]]:
    """The distinct runs, and every cell; seed by seed, so that a stopped study has comparisons.

    Raises ConfigError with what is wrong in all arms.
    """
    configs = _configs(study)
    every: dict[str, Trial] = {}
    cells: list[StudyCell] = []
    for i in range(max((r.seeds for r in study.regimes.values()), default=0)):
        for name, regime in study.regimes.items():
            for arm in regime.arms if i < regime.seeds else ():
                base = regime.first_seed + i % regime.bases if regime.bases else 0
                run = _trial(*configs[name, arm], regime.first_seed + i, base)
                every.setdefault(run.id, run)
                cells.append(StudyCell(name, arm, regime.first_seed + i, run.id, base))
    return list(every.values()), cells


def _configs(study: Study) -> dict[tuple[str, str], Run]:
    configs: dict[tuple[str, str], Run] = {}
    findings: list[Finding] = []
    read = cache(config.read)  # the arms are of few files
    for name, regime in study.regimes.items():
        for arm, own in regime.arms.items():
            try:
                configs[name, arm] = _config(study.settings | regime.settings, arm, own, read)
                if regime.bases and configs[name, arm][0].policy.model_name not in SHAPES:
                    reason = "only countdown models are taught. Remove it."
                    raise ConfigError([Finding(f"regimes.{name}.bases", reason)])
            except ConfigError as error:
                where = f"regimes.{name}.arms.{arm}"
                findings += [Finding(where, str(p)) for p in error.findings]
    if findings:
        raise ConfigError(findings)
    return configs


def _config(common: Settings, arm: str, own: Settings, read: Callable[[Path], DictConfig]) -> Run:
    """An arm's config; and what its keys `planted.*` say, which are none of the engine's."""
    settings = {"config": f"{in_files(arm)}.yaml", **common, **own}
    if "grpo.seed" in settings:
        reason = "the study sets the seeds"
        raise ConfigError([Finding("grpo.seed", f"{reason}. Set seeds and first_seed instead.")])
    path = config.find(str(settings.pop("config")))
    keys = [key for key in settings if key.startswith("planted.")]
    written = {key.removeprefix("planted."): settings.pop(key) for key in keys}
    planted = validate(Planted, written, "planted") if written else None
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    checked, _ = parse(config.resolve(config.apply_overrides(deepcopy(read(path)), overrides)))
    if not checked.grpo.val_samples_per_prompt:
        reason = "it is 0, but a study compares validation samples"
        cure = "Set it to 1 or more."
        raise ConfigError([Finding("grpo.val_samples_per_prompt", f"{reason}. {cure}")])
    if planted and (problem := planted.problem(checked)):
        raise ConfigError([Finding("planted", f"{problem}. Remove it.")])
    return checked, planted


def _trial(arm: LocalConfig, planted: Planted | None, seed: int, base: int) -> Trial:
    taught = arm.policy.taught.model_copy(update={"seed": base})
    sections = {
        "grpo": arm.grpo.model_copy(update={"seed": seed}),
        "policy": arm.policy.model_copy(update={"taught": taught}),
    }
    of_seed = arm.model_copy(update=sections)
    decides = of_seed.model_dump(mode="json", exclude=DECIDE_NOTHING)
    policy = of_seed.policy
    decides["planted"] = planted.model_dump() if planted else None
    decides["policy"] |= {"device": device_of(policy).type, "threads": threads_of(policy)}
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    return Trial(digest[:12], of_seed, planted)


def load(file: Path, overrides: list[str]) -> Study:
    """A study's YAML file with overrides. Raises ConfigError."""
    return validate(Study, config.load(file, overrides))


def keep(study: Study, folder: Path) -> None:
    """Write study.json and cells.csv, by which report.py reads the results of the folder.

    So results stay readable where another version of this code would give runs other ids.
    """
    shown = {"regimes": {"__all__": IN_A_REPORT}, "confirm": True, "path": True}
    plain = study.model_dump(mode="json", include=shown)
    (folder / "study.json").write_text(json.dumps(plain, indent=1) + "\n")
    with open(folder / "cells.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(StudyCell._fields)
        table.writerows(runs(study)[1])
