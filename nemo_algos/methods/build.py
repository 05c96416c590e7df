"""From a config's `method:` block to an algorithm. Loads no torch.

method: {name: etr, micro: 0.05}                        one method
method: {advantages: erpo, bounds: etr}      a combination; the rest is that of `advantages`' method
method: {name: gspo, bounds: {name: etr, macro: 0.2}}   a component with parameters of its own
method: {name: my_package.my_module:MINE}               a third party's
"""

import importlib
from typing import Any

from nemo_algos.config import ConfigError, Finding, did_you_mean, validate
from nemo_algos.methods import METHODS
from nemo_algos.methods.algorithm import Algorithm, Component
from nemo_algos.methods.method import (
    ClipParams,
    Method,
    Params,
    clip_bounds,
    keep_advantages,
    no_bounds,
)

COMPONENTS = ("advantages", "bounds")
RATIO_KEYS = ("max_log_ratio", "dual_clip")  # read of the base's parameters alone


def build(method: dict[str, Any] | str | Method) -> Algorithm:
    """The algorithm of a `method:` block, or of a method (its name, or its record) with defaults.

    Raises ConfigError with every finding: unknown names and keys, values out of range, components
    that do not fit.
    """
    block = _block(method, "method")
    written = {k: block.pop(k, None) for k in COMPONENTS}
    blocks = {k: _block(v, f"method.{k}") for k, v in written.items() if v is not None}
    # without a name, one method gives the base and the advantages
    if "name" not in block and "advantages" in blocks:
        block = blocks.pop("advantages") | block
    findings = [
        Finding(f"method.{name}.{key}", f"is of the ratio, not of {name}: write it under method")
        for name, values in blocks.items()
        for key in RATIO_KEYS
        if key in values
    ]
    base = _resolve(block, "method", findings)
    resolved = {k: _resolve(b, f"method.{k}", findings) for k, b in blocks.items()}
    if findings:
        raise ConfigError(findings)
    assert base is not None
    algorithm = Algorithm(base, *(resolved.get(name) or base for name in COMPONENTS))
    if misfits := _misfits(algorithm):
        raise ConfigError([Finding("method", reason) for reason in misfits])
    return algorithm


def _block(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, (str, Method)):
        return {"name": value}
    if not isinstance(value, dict):
        raise ConfigError([Finding(path, f"must be a name or a block with a name, got {value!r}")])
    return dict(value)


def _resolve(block: dict[str, Any], path: str, findings: list[Finding]) -> Component | None:
    try:
        method = find(block.get("name"), path)
        params = validate(method.params, {k: v for k, v in block.items() if k != "name"}, path)
    except ConfigError as error:
        findings.extend(error.findings)
        return None
    return Component(method, params)


def find(name: Any, path: str = "method") -> Method:
    """The method of a name, of `package.module:NAME`, or of a record; ConfigError where none is."""
    if isinstance(name, str) and name in METHODS:
        return METHODS[name]
    if isinstance(name, Method) and METHODS.get(name.name) is name:
        return name
    if isinstance(name, Method) or (isinstance(name, str) and ":" in name):
        return _third_party(name, path)
    hint = did_you_mean(str(name), list(METHODS))
    reason = "missing: name a method" if name is None else f"unknown method {name!r}"
    raise ConfigError([Finding(f"{path}.name", f"{reason}{hint}")])


def _third_party(name: str | Method, path: str) -> Method:
    method = name
    if isinstance(name, str):
        module, _, attribute = name.partition(":")
        try:
            method = getattr(importlib.import_module(module), attribute)
        except (Exception, SystemExit) as error:  # whatever the module's own code raises
            reason = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
            finding = Finding(f"{path}.name", f"cannot import {name!r}: {reason}")
            raise ConfigError([finding]) from error
    if fault := _fault(method):
        label = name.name if isinstance(name, Method) else name
        raise ConfigError([Finding(f"{path}.name", f"{label!r} {fault}")])
    assert isinstance(method, Method)
    return method


def _fault(method: Any) -> str | None:
    if not isinstance(method, Method):
        return f"is a {type(method).__name__}, not a Method"
    if method.name in METHODS:
        return f"calls itself {method.name}, which exists: rename it"
    if not (isinstance(method.params, type) and issubclass(method.params, Params)):
        return "has params that are not a subclass of Params: derive them from it"
    constant = method.bounds is None and method.constant_bounds is clip_bounds
    if constant and not issubclass(method.params, ClipParams):
        return "has no clip_low and clip_high: derive its params from ClipParams, or give it bounds"
    return None


def _misfits(a: Algorithm) -> list[str]:
    """Why the components have no meaning together."""
    base, advantages, bounds = a.base.method, a.advantages.method, a.bounds.method
    reasons = []
    one = base.ratio == "sequence" or "sequence_advantages" in base.needs
    if a.per_token["advantages"] and one:
        kind = "sequence ratio" if base.ratio == "sequence" else "weight of a whole response"
        reasons.append(
            f"{base.name}'s {kind} needs one advantage per sequence, but {advantages.name} gives "
            "one per token: use its advantages with a token ratio (grpo, etr's bounds, cispo)"
        )
    if "sequence_mean" in advantages.needs and a.mean == "token":
        reasons.append(
            f"{advantages.name}'s advantages grow with the response, and {base.name}'s token mean "
            "would weigh it by its length again: use a sequence mean"
        )
    if bounds is not base and base.clips is None:
        reasons.append(
            f"{base.name} has no ratio to clip, so bounds of {bounds.name} would do nothing: "
            "drop bounds"
        )
    if bounds is not base and bounds.bounds is None and bounds.constant_bounds is no_bounds:
        reasons.append(f"{bounds.name} has no bounds of its own to give: drop bounds")
    # it cuts a ratio that the surrogate itself clips, with advantages of a fixed sign
    plain = base.clips == base.form == "ratio" and base.reweight is keep_advantages
    if a.base.params.dual_clip is not None and not plain:
        reasons.append(
            f"dual_clip has no meaning for {base.name}: it cuts the plain clipped ratio of grpo, "
            "etr, erpo and gspo"
        )
    return reasons
