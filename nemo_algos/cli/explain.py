"""What a key is: `nemo-algos check --explain KEY`."""

import inspect
import json
import re
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nemo_algos.algorithms.extensions.loss_config import SET_BY_METHOD
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.engines.local.schema import LocalConfig
from nemo_algos.engines.nemo.derived_config import DEFAULT, OURS, SHARED, Base
from nemo_algos.findings import (
    ConfigError,
    Finding,
    at,
    did_you_mean,
    fields_of,
    sections_in,
    set_at,
)
from nemo_algos.lab.evals.schema import ENGINES, EvalConfig
from nemo_algos.preflight.check.keys import knows
from nemo_algos.preflight.check.release import Release

LIMITS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
# the owner of the keys, their schema, and what is written before them in a path
SOURCES: list[tuple[str, type[BaseModel], str]] = [
    ("embedded engine", LocalConfig, ""),
    *((name, method.params, "method.") for name, method in METHODS.items()),
    ("runs of NeMo-RL", Base, "nemo_rl."),
    *((f"eval with model.engine={name}", EvalConfig[kind], "") for name, kind in ENGINES.items()),
]


def explain_key(key: str, release: Release) -> list[str]:
    """A line for each meaning of a key, with who has it. Raises ConfigError where nobody does."""
    fields = []
    for who, schema, above in SOURCES:
        for one in fields_of(schema, above):
            fields.append((who, *one))
    meanings = dict[str, list[str]]()
    for who, path, field in fields:
        if fnmatchcase(key, path):
            both = path.partition(".")[0] in SHARED
            meanings.setdefault(_describe(field), []).append("both engines" if both else who)
    text = _of_nemo_rl(key, release)
    if text is not None:
        meanings.setdefault(text, []).append(release.name)
    reason = SET_BY_METHOD.get(key.removeprefix("loss_fn."))
    if reason:
        meanings = {f"not allowed: {reason}.": ["every engine"]}
    if not meanings:
        known = sorted({path for _, path, _ in fields} | release.declared)
        raise ConfigError([Finding(key, f"unknown key{did_you_mean(key, known)}")])
    return [f"{_named(who)}: {text}" for text, who in meanings.items()]


def _describe(field: FieldInfo) -> str:
    """Type, limits, default, text."""
    sections = sections_in(field.annotation)
    kind = re.sub(r"(\w+\.)+", "", inspect.formatannotation(field.annotation))
    limits = []
    for constraint in field.metadata:
        for name, sign in LIMITS.items():
            limit = getattr(constraint, name, None)
            if limit is not None:
                limits.append(f"{sign} {limit}")
    usual = field.get_default(call_default_factory=True)
    default = "required" if field.is_required() else f"default {_format(usual)}"
    text = field.description or (sections[0].__doc__ if len(sections) == 1 else "") or ""
    return f"{' '.join([kind, *limits])}, {default}. {' '.join(text.split())}".strip()


def _format(value: Any) -> str:
    if isinstance(value, BaseModel):
        return "those of its keys"
    return json.dumps(value)


def _of_nemo_rl(key: str, release: Release) -> str | None:
    """What NeMo-RL makes of it; None where it has no such key."""
    base = release.configs[DEFAULT]  # a run's without `nemo_rl.config`
    asked = dict[str, Any]()
    set_at(asked, key, None)
    if key.partition(".")[0] in OURS or not knows(asked, base, release):
        return None
    value = at(dict(base), key)
    if isinstance(value, dict):
        return "a section of NeMo-RL."
    return f"a key of NeMo-RL, {json.dumps(value)} in its {DEFAULT}."


def _named(who: list[str]) -> str:
    if len(who) == len(METHODS):
        return "every method"
    return ", ".join(who)
