"""Incidents of a config: what `check` and `plan` say of it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pickle
from pathlib import Path
from typing import Any

from incident import Check, Number, Plan
from measured import Measured, missing
from omegaconf import DictConfig, OmegaConf

from nemo_algos.config import apply_overrides, find, read, resolve, select
from nemo_algos.findings import ConfigError, Finding
from nemo_algos.preflight.check.compose import compose
from nemo_algos.preflight.check.judge import judge, judged_locally
from nemo_algos.preflight.check.known_models import model as facts
from nemo_algos.preflight.check.release import Release, shipped
from nemo_algos.preflight.plan.layouts import gpu_of
from nemo_algos.preflight.plan.layouts import plan as planned
from nemo_algos.preflight.plan.nemo_rl_arguments import GPUS
from nemo_algos.preflight.slurm.batch import seconds

THEIRS = "examples/configs/"
OURS = ("engine", "method", "nemo_rl", "old_policy", "rollout_correction", "mismatch")
LEVELS = ("note", "warning", "error")


@functools.cache
def release() -> Release:
    """NeMo-RL as it ships with this package, read as a user's checkout: unknown keys are errors."""
    return dataclasses.replace(shipped(), root=Path("/nemo-rl"))


@functools.cache
def _base(name: str) -> bytes:
    if name.startswith(THEIRS):
        own = {"engine": "nemo_rl", "method": {"name": "grpo"}}
        own |= {"nemo_rl": {"config": name.removeprefix(THEIRS)}}
        return pickle.dumps(OmegaConf.create(own))
    return pickle.dumps(read(find(name)))


def written(name: str, overrides: list[str]) -> DictConfig:
    """As a user writes it: a file of ours, or one of NeMo-RL's below ours."""
    return apply_overrides(pickle.loads(_base(name)), overrides)


def _overrides(row: Check | Plan) -> list[str]:
    return [one.replace("{here}", str(row.folder)) for one in row.overrides]


def findings(name: str, overrides: list[str], time: str | None) -> list[Finding]:
    """All that `check` finds."""
    try:
        given = written(name, overrides)
        if select(given, "engine") == "nemo_rl":
            return judge(given, release(), seconds(time) if time else None)[1]
        return judged_locally(resolve(given)).warnings
    except ConfigError as error:
        return error.findings


@functools.cache
def _before(name: str) -> frozenset[tuple[str, str, str]]:
    return frozenset(tuple(f) for f in findings(name, [], None))


def for_nemo_rl(row: Check) -> dict[str, Any]:
    """The whole config as NeMo-RL gets it, without our sections."""
    plain = compose(written(row.config, _overrides(row)), release()).plain
    return {key: value for key, value in plain.items() if key not in OURS}


def _near(path: str, key: str) -> bool:
    return path == key or path.startswith(f"{key}.") or key.startswith(f"{path}.")


def measure_check(row: Check) -> Measured:
    """Of what the overrides add: a finding at a key, its level, its words."""
    with contextlib.chdir(row.folder):
        before = _before(row.config) if row.overrides or row.time else frozenset()
        found = findings(row.config, _overrides(row), row.time)
    new = [f for f in found if tuple(f) not in before]
    wanted = row.expected
    near = [f for f in new if any(_near(f.path, key) for key in wanted.keys)]
    least = LEVELS.index(wanted.level)
    whole = [
        f for f in near if LEVELS.index(f.severity) >= least and not missing(wanted.says, f.message)
    ]
    if whole:
        return Measured("whole", _line(whole[0]))
    if near:
        return Measured("part", _line(near[0]))
    others = [f for f in new if f.severity != "note"]
    return Measured("missed", f"elsewhere: {_line(others[0])}" if others else "nothing")


def _line(found: Finding) -> str:
    return f"{found.severity} {found.path}: {found.message}"[:160]


def measure_plan(row: Plan) -> Measured:
    """A number of the plan within its limits."""
    with contextlib.chdir(row.folder):
        run, found = judge(written(row.config, _overrides(row)), release())
    errors = [f for f in found if f.severity == "error"]
    if errors:
        return Measured("missed", f"refused: {_line(errors[0])}")
    plain = run.plain
    shape = run.model or facts(run["policy.model_name"])
    numbers = planned(plain, shape, GPUS[row.gpu or gpu_of(plain)], row.mean_tokens)
    whole, said = _within(row.expected, numbers.numbers() | {"tight": numbers.tight})
    if whole:
        return Measured("whole", said)
    if row.in_part:
        part, more = _within(row.in_part, numbers.numbers() | {"tight": numbers.tight})
        said = f"{said}; {more}"
        return Measured("part" if part else "missed", said)
    return Measured("missed", said)


def _within(wanted: Number, numbers: dict[str, Any]) -> tuple[bool, str]:
    value: Any = numbers
    for key in wanted.number.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if value is None:
        return False, f"{wanted.number} is not known"
    value = sum(value.values()) if isinstance(value, dict) else value
    fits = wanted.equals is None or value == wanted.equals
    fits = fits and (wanted.at_least is None or value >= wanted.at_least)
    fits = fits and (wanted.at_most is None or value <= wanted.at_most)
    return fits, f"{wanted.number} {value if isinstance(value, bool) else f'{value:.3g}'}"
