"""From a config's `method:` block to an algorithm. Loads no torch.

method: {name: etr, micro: 0.05}                        one method
method: {advantages: erpo, bounds: etr}      a combination; the rest is that of `advantages`' method
method: {name: gspo, bounds: {name: etr, macro: 0.2}}   a part with parameters of its own
method: {name: my_package.my_module:MINE}               a third party's
"""

from __future__ import annotations

import importlib
from typing import Any

from nemo_algos.config import ConfigError, Finding, did_you_mean, validate
from nemo_algos.methods import METHODS
from nemo_algos.methods.algorithm import Algorithm
from nemo_algos.methods.method import (
    ClipParams,
    Method,
    Params,
    clip_bounds,
    keep_advantages,
    no_bounds,
    no_constants,
)

PARTS = ("advantages", "bounds")
OF_BASE = ("max_log_ratio", "dual_clip")  # read of the base's parameters alone


def build(method: dict[str, Any] | str) -> Algorithm:
    """The algorithm of a `method:` block (or of a method's name with its defaults).

    Raises ConfigError with every problem: unknown names and keys, values out of range, parts that
    do not fit.
    """
    block = _part(method, "method")
    written = {k: block.pop(k, None) for k in PARTS}
    parts = {k: _part(v, f"method.{k}") for k, v in written.items() if v is not None}
    # without a name, one method gives the base and the advantages
    if "name" not in block and "advantages" in parts:
        block = parts.pop("advantages") | block
    problems = [
        Finding(f"method.{part}.{key}", f"is of the ratio, not of {part}: write it under method")
        for part, values in parts.items()
        for key in OF_BASE
        if key in values
    ]
    base = _resolve(block, "method", problems)
    resolved = {k: _resolve(p, f"method.{k}", problems) for k, p in parts.items()}
    if problems:
        raise ConfigError(problems)
    assert base is not None
    advantages, bounds = (resolved.get(part) or base for part in PARTS)
    algorithm = Algorithm(*base, *advantages, *bounds)
    problems = [Finding("method", reason) for reason in _misfits(algorithm)]
    if problems:
        raise ConfigError(problems)
    return algorithm


def _part(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, dict):
        raise ConfigError([Finding(path, f"must be a name or a block with a name, got {value!r}")])
    return dict(value)


def _resolve(
    block: dict[str, Any], path: str, problems: list[Finding]
) -> tuple[Method, Params] | None:
    try:
        method = find(block.get("name"), path)
        params = validate(method.params, {k: v for k, v in block.items() if k != "name"}, path)
    except ConfigError as error:
        problems.extend(error.findings)
        return None
    return method, params


def find(name: Any, path: str = "method") -> Method:
    """The method of a name, or of `package.module:NAME`. Raises ConfigError that says what is
    wrong."""
    if isinstance(name, str) and ":" in name:
        return _third_party(name, path)
    if not isinstance(name, str) or name not in METHODS:
        hint = did_you_mean(str(name), list(METHODS))
        what = "missing: name a method" if name is None else f"unknown method {name!r}"
        raise ConfigError([Finding(f"{path}.name", f"{what}{hint}")])
    return METHODS[name]


def _third_party(name: str, path: str) -> Method:
    module, _, attribute = name.partition(":")
    try:
        method = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever the module's own code raises
        what = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        raise ConfigError([Finding(f"{path}.name", f"cannot import {name!r}: {what}")]) from error
    fault = _fault(method)
    if fault:
        raise ConfigError([Finding(f"{path}.name", f"{name!r} {fault}")])
    return method


def _fault(method: Any) -> str | None:
    """What is wrong with a third party's record."""
    if not isinstance(method, Method):
        return f"is a {type(method).__name__}, not a Method"
    if method.name in METHODS:
        return f"calls itself {method.name}, which exists: rename it"
    if not (isinstance(method.params, type) and issubclass(method.params, Params)):
        return "has params that are not a subclass of Params: derive them from it"
    if method.bounds is clip_bounds and not issubclass(method.params, ClipParams):
        return "has no clip_low and clip_high: derive its params from ClipParams, or give it bounds"
    return None


def _misfits(a: Algorithm) -> list[str]:
    """Why the parts have no meaning together."""
    base, reasons = a.base, []
    per_sequence = base.ratio == "sequence" or base.constants is not no_constants
    if a.advantages.token_advantages and per_sequence:
        what = "power mean" if base.ratio == "token" else "sequence ratio"
        reasons.append(
            f"{base.name}'s {what} needs one advantage per sequence, but {a.advantages.name} "
            f"gives one per token: "
            "use its advantages with a token ratio (grpo, etr's bounds, cispo)"
        )
    if a.bounds is not base and base.clips is None:
        reasons.append(
            f"{base.name} has no ratio to clip, so bounds of {a.bounds.name} would do nothing: "
            f"drop bounds"
        )
    if a.bounds is not base and a.bounds.bounds is no_bounds:
        reasons.append(f"{a.bounds.name} has no bounds of its own to give: drop bounds")
    if a.params.dual_clip is not None and not dual_clip_has_meaning(a):
        reasons.append(
            f"dual_clip has no meaning for {base.name}: it cuts the plain clipped ratio of grpo, "
            f"etr, erpo and gspo"
        )
    return reasons


def dual_clip_has_meaning(a: Algorithm) -> bool:
    """Only a ratio that the surrogate itself clips, with advantages of a fixed sign."""
    return a.base.clips == "ratio" and a.base.reweight is keep_advantages and a.base.form == "ratio"
