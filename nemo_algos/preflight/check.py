"""`nemo-algos check`: what can be known of a run before it starts, all of it at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_algos.config import (
    ConfigError,
    Finding,
    at,
    find,
    overridden,
    read,
    resolved,
    validate,
)
from nemo_algos.local.preflight import judged as judged_locally
from nemo_algos.methods.algorithm import Algorithm
from nemo_algos.methods.build import build
from nemo_algos.methods.loss import MismatchConfig
from nemo_algos.preflight.conflicts import conflicts
from nemo_algos.preflight.decided import DEFAULT, derive
from nemo_algos.preflight.layout import layout
from nemo_algos.preflight.models import Model, model
from nemo_algos.preflight.rule import Rule, Run
from nemo_algos.preflight.rules.batch import BATCH
from nemo_algos.preflight.rules.data import DATA
from nemo_algos.preflight.rules.generation import GENERATE
from nemo_algos.preflight.rules.layout import LAYOUT
from nemo_algos.preflight.rules.method import METHOD
from nemo_algos.preflight.rules.objective import OBJECTIVE
from nemo_algos.preflight.rules.run import RUN
from nemo_algos.preflight.rules.training import TRAINING
from nemo_algos.preflight.rules.values import repaired
from nemo_algos.preflight.snapshot import VERSIONS, Snapshot, compose, load

RULES: tuple[Rule, ...] = (*LAYOUT, *BATCH, *GENERATE, *TRAINING, *METHOD, *OBJECTIVE, *DATA, *RUN)
SEVERITIES = ("error", "warning", "note")
HEADER = re.compile(r"^# NeMo-RL ((?:v[\d.]+\d|main)(?:, (?:v[\d.]+\d|main))*)", re.MULTILINE)


def versions(name: str) -> tuple[str, ...]:
    """Those in the file's line `# NeMo-RL v0.7.0, main`, else all."""
    path = find(name)
    header = HEADER.search(path.read_text(errors="replace")) if path.is_file() else None
    named = header[1].split(", ") if header else []
    return tuple(v for v in named if v in VERSIONS) or VERSIONS


def check(
    name: str, overrides: Sequence[str], version: str, seconds: int | None = None
) -> list[Finding]:
    """Findings of a config by path or shipped name, errors first. seconds: the job's time limit."""
    try:
        written = overridden(read(find(name)), overrides)
        if OmegaConf.select(written, "engine") == "nemo_rl":
            findings = _nemo_rl(written, load(version), seconds)
        else:
            judged_locally(resolved(written))
            findings = []
    except ConfigError as problems:
        findings = problems.findings
    return sorted(dict.fromkeys(findings), key=lambda f: SEVERITIES.index(f.severity))


def _nemo_rl(written: DictConfig, snapshot: Snapshot, seconds: int | None) -> list[Finding]:
    plain, own, unknown = compose(written, snapshot)
    return _errors(unknown) + judged(plain, own, snapshot, seconds)


def judged(
    plain: dict[str, Any], written: dict[str, Any], snapshot: Snapshot, seconds: int | None = None
) -> list[Finding]:
    """Of a resolved config, which is changed in place."""
    name = at(written, "nemo_rl.config") or DEFAULT
    problems = repaired(plain, snapshot.configs[name])
    problems += _mismatch(plain)
    algorithm, wrong = _algorithm(plain)
    if algorithm:
        problems += conflicts(plain, written, algorithm)
        derive(plain, algorithm)
    run = Run(plain, written, algorithm, layout(plain), _model(plain), snapshot.version, seconds)
    return _errors([*problems, *wrong]) + [finding for rule in RULES for finding in rule(run)]


def _errors(problems: Sequence[Finding]) -> list[Finding]:
    return list(problems)


def _algorithm(plain: Mapping[str, Any]) -> tuple[Algorithm | None, list[Finding]]:
    try:
        return build(plain.get("method") or {}), []
    except ConfigError as error:
        return None, error.findings


def _mismatch(plain: Mapping[str, Any]) -> list[Finding]:
    try:
        validate(MismatchConfig, plain.get("mismatch") or {}, "mismatch")
    except ConfigError as error:
        return error.findings
    return []


def _model(plain: Mapping[str, Any]) -> Model | None:
    """The facts, as policy.hf_config_overrides changes them; None of an unknown model."""
    try:
        facts = model(str(at(plain, "policy.model_name")))
    except (ValueError, OSError):
        return None
    changed = at(plain, "policy.hf_config_overrides") or {}
    return facts.model_copy(update={k: v for k, v in changed.items() if k in Model.model_fields})
