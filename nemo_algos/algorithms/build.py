"""From a config's `method:` block to an algorithm. Loads no torch.

method: {name: etr, micro: 0.05}                        one method
method: {advantages: erpo, bounds: etr}      a combination; the rest is that of `advantages`' method
method: {name: gspo, bounds: {name: etr, macro: 0.2}}   a component with parameters of its own
method: {name: my_package.my_module:MINE}               a third party's
method: {name: etr, terms: {nll: {coef: 0.1}}}          terms beside the surrogate
method: {name: etr, terms: {own: {name: my_package.my_module:OWN}}}
"""

import importlib
from collections.abc import Mapping
from typing import Any, TypeVar

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.extensions.compatibility import COMPONENTS, misfits
from nemo_algos.algorithms.extensions.correction import CorrectionConfig
from nemo_algos.algorithms.extensions.terms import TERMS, LossTerm, WeightedTerm
from nemo_algos.algorithms.kernel import Component, Method
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.algorithms.record import check_constant_bounds
from nemo_algos.findings import ConfigError, Finding, did_you_mean, validate

Record = TypeVar("Record", Method, LossTerm)

# a typo: this share of both names' letters agrees; of shorter ones another letter is another name
TYPO = 0.8
LONG = 5
WITH_CRITIC = ("a2c", "actor_critic", "ppo", "vapo", "vc_ppo")


def build(
    method: dict[str, Any] | str | Method,
    rollout_correction: dict[str, Any] | CorrectionConfig | None = None,
) -> Algorithm:
    """The algorithm of a `method:` block, or of a method (its name, or its record) with defaults.

    rollout_correction: the block of that name, or its config. Raises ConfigError with every
    finding: unknown names and keys, values out of range, components that do not fit.
    """
    block = _block(method, "method")
    beside = {*block}
    written = {k: block.pop(k, None) for k in COMPONENTS}
    blocks = {}
    for k, v in written.items():
        if v is not None:
            blocks[k] = _block(v, f"method.{k}")
    findings = list[Finding]()
    terms = _terms(block.pop("terms", {}), findings)
    correction = _correction(rollout_correction, findings)
    # without a name, one method gives the base and the advantages
    if "name" not in block and "advantages" in blocks:
        block = blocks.pop("advantages") | block
    base = _resolve(block, "method", findings)
    resolved = {k: _resolve(b, f"method.{k}", findings) for k, b in blocks.items()}
    if findings:
        raise ConfigError(findings)
    assert base is not None
    advantages, bounds = (resolved.get(name) or base for name in COMPONENTS)
    algorithm = Algorithm(base, advantages, bounds, terms, correction)
    check_constant_bounds(algorithm)
    findings += misfits(algorithm, beside)
    if findings:
        raise ConfigError(findings)
    return algorithm


def _correction(block: Any, findings: list[Finding]) -> CorrectionConfig:
    """What is wrong with it goes into the findings."""
    if isinstance(block, CorrectionConfig):
        return block
    try:
        return validate(CorrectionConfig, {} if block is None else block, "rollout_correction")
    except ConfigError as error:
        findings += error.findings
        return CorrectionConfig()


def _block(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, (str, Method)):
        return {"name": value}
    if not isinstance(value, dict):
        raise ConfigError(
            [Finding(path, f"must be a name or a section with a name, got {value!r}")]
        )
    return dict(value)


def _resolve(block: dict[str, Any], path: str, findings: list[Finding]) -> Component | None:
    try:
        method = find(block.get("name"), path)
        params = validate(method.params, {k: v for k, v in block.items() if k != "name"}, path)
    except ConfigError as error:
        findings.extend(error.findings)
        return None
    return Component(method, params)


def _terms(blocks: Any, findings: list[Finding]) -> tuple[WeightedTerm, ...]:
    """The terms by name; what is wrong goes into the findings."""
    if not isinstance(blocks, Mapping):
        findings.append(Finding("method.terms", f"must be sections by name, got {blocks!r}"))
        return ()
    terms = list[WeightedTerm]()
    for key, block in blocks.items():
        try:
            terms.append(_term(str(key), block))
        except ConfigError as error:
            findings += error.findings
    for i, (term, _) in enumerate(terms):
        before = []
        for other, _ in terms[:i]:
            if term.holds and other.holds == term.holds:
                before.append(other.name)
        if before:
            findings.append(
                Finding(
                    f"method.terms.{term.name}",
                    f"{term.name} and {before[0]} both control the {term.holds}. Keep one of them.",
                )
            )
    return tuple(terms)


def _term(key: str, block: Any) -> WeightedTerm:
    """The term of its own name, or that its block's `name` gives."""
    path = f"method.terms.{key}"
    if not isinstance(block, Mapping):
        raise ConfigError(
            [Finding(path, f"must be a section of parameters, such as {{}}, got {block!r}")]
        )
    named = f"{path}.name" if "name" in block else path
    term = _lookup(block.get("name", key), named, LossTerm, TERMS)
    if term.name != key:
        raise ConfigError(
            [
                Finding(
                    named,
                    f"the name of this term is {term.name}. Move it to `method.terms.{term.name}`.",
                )
            ]
        )
    return WeightedTerm(
        term, validate(term.params, {k: v for k, v in block.items() if k != "name"}, path)
    )


def find(name: Any, path: str = "method") -> Method:
    """The method of a name, of `package.module:NAME`, or of a record; ConfigError where none is."""
    if name is None:
        hint = did_you_mean(str(name), list(METHODS))
        raise ConfigError([Finding(f"{path}.name", f"it is missing. Name a method{hint}.")])
    return _lookup(name, f"{path}.name", Method, METHODS)


def _lookup(name: Any, path: str, kind: type[Record], known: Mapping[str, Record]) -> Record:
    """The record of a name, of `package.module:NAME`, or itself."""
    if isinstance(name, str) and name in known:
        return known[name]
    if isinstance(name, kind) and known.get(name.name) is name:
        return name
    if not isinstance(name, kind) and not (isinstance(name, str) and ":" in name):
        what = "method" if kind is Method else "term"
        hint = _hint(str(name), known)
        if str(name).lower() in WITH_CRITIC:
            hint = (
                ". It trains a critic, which is not supported. `nemo-algos methods` lists the "
                "methods"
            )
        raise ConfigError([Finding(path, f"unknown {what} {name!r}{hint}")])
    record = _import(name, path) if isinstance(name, str) else name
    if not isinstance(record, kind):
        article = "a Method" if kind is Method else "a LossTerm"
        got = type(record).__name__
        raise ConfigError([Finding(path, f"must name {article}, but {name!r} is a {got}")])
    if record.name in known:
        label = name if isinstance(name, str) else name.name
        raise ConfigError(
            [
                Finding(
                    path,
                    f"{label!r} has the name {record.name}, which is already taken. Rename it.",
                )
            ]
        )
    return record


def _hint(name: str, known: Mapping[str, Record]) -> str:
    """What a name that is no method's, or term's, may have meant."""
    plain = name.lower().replace("-", "_")
    spelled = {other.replace("_", ""): other for other in known}
    same = spelled.get(plain.replace("_", ""))
    if same:
        return f" (did you mean {same}?)"
    from nemo_algos.config import shipped_method  # OmegaConf, for a message

    block = shipped_method(plain) if known is METHODS else {}
    if not block:
        return did_you_mean(name, list(known), TYPO if len(name) >= LONG else 1.0)
    preset = ", ".join(f"{key}: {value}" for key, value in block.items())
    return (
        f": it is a shipped config of another method. Set `method: {{{preset}}}`, or begin with "
        f"{plain}.yaml"
    )


def _import(name: str, path: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever the module's own code raises
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "  # a record's
        reason = " ".join(f"{kind}{error}".split()).removesuffix(":")
        raise ConfigError([Finding(path, f"cannot import {name!r}: {reason}")]) from error
