"""A study's design: regimes, each of some arms, each of some seeds; and the runs that they need.

    settings: {grpo.max_num_steps: 120}       # of every run
    regimes:
      staleness_8:
        claim: QUATRO stays stable ...         # what a paper says
        baseline: grpo                         # the arm that the others are compared with
        seeds: 10
        settings: {grpo.num_update_epochs: 2}
        arms:
          grpo: {}                             # the shipped grpo.yaml
          no_macro: {config: etr.yaml, method.macro: 0.0}

Two arms of one config are one run, whatever their regimes and names.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, model_validator

from nemo_algos import config
from nemo_algos.config import ConfigError, Problem
from nemo_algos.launch import check_local
from nemo_algos.local.schema import LocalConfig, Section

Settings = dict[str, Any]  # key.path: value


class Tuning(Section):
    """Every arm is first run with each of the values of a key, seeds 0 to seeds - 1; the value with
    the highest training reward at the end is the arm's."""

    key: str
    values: list[Any] = Field(min_length=2)
    seeds: int = Field(default=3, gt=1)


class Regime(Section):
    """claim: of a paper, and where; baseline: an arm; seeds: how many, from first_seed on;
    exploratory: looked at without a hypothesis fixed beforehand."""

    claim: str
    baseline: str
    arms: dict[str, Settings] = Field(min_length=2)
    settings: Settings = Field(default={})
    seeds: int = Field(default=5, gt=1)
    first_seed: int = Field(default=0, ge=0)
    exploratory: bool = False
    tune: Tuning | None = None

    @model_validator(mode="after")
    def _baseline_is_an_arm(self) -> Regime:
        if self.baseline not in self.arms:
            raise ValueError(f"baseline={self.baseline} is not one of the arms")
        return self


class Study(Section):
    """The whole file."""

    regimes: dict[str, Regime] = Field(min_length=1)
    settings: Settings = Field(default={})
    workers: int = Field(default=2, gt=0)
    out: str = "runs/study"


class Run(NamedTuple):
    """One training run. id: a hash of all that its result depends on."""

    id: str
    config: LocalConfig


class Cell(NamedTuple):
    """An arm of a regime with one seed, and the run that gives its result."""

    regime: str
    arm: str
    seed: int
    run: str


def runs(study: Study) -> tuple[list[Run], list[Cell]]:
    """The distinct runs, seed by seed, so that a study that is stopped has whole comparisons; and
    every cell.

    Raises ConfigError with the problems of all arms.
    """
    every: dict[str, Run] = {}
    cells: list[Cell] = []
    problems: list[Problem] = []
    for i in range(max((r.seeds for r in study.regimes.values()), default=0)):
        for name, regime in study.regimes.items():
            seed = regime.first_seed + i
            for arm, own in regime.arms.items() if i < regime.seeds else ():
                try:
                    run = _run(study.settings | regime.settings, arm, own, seed)
                except ConfigError as error:
                    where = f"regimes.{name}.arms.{arm}"
                    problems += [Problem(where, str(p)) for p in error.problems if i == 0]
                    continue
                every.setdefault(run.id, run)
                cells.append(Cell(name, arm, seed, run.id))
    if problems:
        raise ConfigError(problems)
    return list(every.values()), cells


def _run(common: Settings, arm: str, own: Settings, seed: int) -> Run:
    settings = {"config": f"{arm}.yaml", **common, **own, "grpo.seed": seed}
    path = config.find(settings.pop("config"))
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    checked, _ = check_local(config.load(path, overrides))
    decides = checked.model_dump(mode="json", exclude={"logger", "checkpointing"})
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    return Run(digest[:12], checked)


def load(name: str, overrides: list[str]) -> Study:
    """A study's file, by path or among the shipped ones (`study/full.yaml`). Raises ConfigError."""
    return config.validate(Study, config.load(config.find(name), overrides))


def folder(study: Study, name: str) -> Path:
    """Where its results are kept."""
    return Path(study.out) / Path(name).stem
