"""A user's config over the config of NeMo-RL that it names."""

import functools
import pickle
import warnings
from collections.abc import Iterator, Mapping, Set
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_algos.config import resolve
from nemo_algos.engines.nemo.derived_config import DEFAULT, OURS, base_of
from nemo_algos.findings import ConfigError, Finding, at, did_you_mean
from nemo_algos.interpolation import evaluating
from nemo_algos.preflight.check.keys import unknown_keys
from nemo_algos.preflight.check.release import Release, is_grpo, purpose

RESOLVERS = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": lambda a, b: max(a, b),
}


class Composed(NamedTuple):
    """A config over NeMo-RL's.

    plain: both, resolved; written: the user's keys; base, tree: NeMo-RL's, interpolations as
    written; unknown: keys that NeMo-RL does not have, or not there; release: the NeMo-RL.
    """

    plain: dict[str, Any]
    written: dict[str, Any]
    base: Mapping[str, Any]
    tree: DictConfig
    unknown: list[Finding]
    release: Release


def compose(written: DictConfig, release: Release) -> Composed:
    """A config with `engine: nemo_rl` over NeMo-RL's that it names (`nemo_rl.config`).

    Raises ConfigError where NeMo-RL has no such config, or the two do not go together, or an
    interpolation cannot be resolved.
    """
    with warnings.catch_warnings():
        # omegaconf 2.4 renames it, to a name with another meaning in 2.3
        warnings.simplefilter("ignore")
        for resolver, function in RESOLVERS.items():
            if not OmegaConf.has_resolver(resolver):
                OmegaConf.register_new_resolver(resolver, function)
    own: Any = OmegaConf.to_container(written)
    name = base_of(own).config
    base = release.configs.get(name)
    if base is None:
        said = (
            f"{name} is not below examples/configs of {release.name}"
            f"{did_you_mean(name, sorted(release.configs))}"
        )
        raise ConfigError([Finding("nemo_rl.config", said)])
    if not is_grpo(base):
        said = (
            f"{name} is a config for {purpose(base)}, but methods here need a GRPO trainer. Use a "
            f"config with a grpo section, such as {DEFAULT}."
        )
        raise ConfigError([Finding("nemo_rl.config", said)])
    tree = release.tree(name)
    own = _by_index(own, base)
    unknown = unknown_keys({k: v for k, v in own.items() if k not in OURS}, base, release)
    if isinstance(own.get("method"), str):
        own["method"] = {"name": own["method"]}
    elif not isinstance(own.get("method"), Mapping):
        said = f"must be a section such as {{name: grpo}}, got {own.get('method')!r}"
        raise ConfigError([*unknown, Finding("method", said)])
    replaced = set()
    for k, v in own.items():
        if isinstance(v, Mapping) and v.get("_override_"):
            replaced.add(k)
    kept = {k: v for k, v in own.items() if k not in replaced}
    wrong = [*_misplaced(kept, base, release.declared, name)]
    for finding in wrong:
        above, _, key = finding.path.rpartition(".")
        del (at(own, above) if above else own)[key]
    try:
        plain = resolve(_merged(tree, own, replaced))
    except ConfigError as error:
        raise ConfigError([*unknown, *wrong, *([*_nulls(own, base)] or error.findings)]) from None
    named = {str(k): v for k, v in own.items()}
    return Composed(plain, named, base, tree, [*unknown, *wrong], release)


def _by_index(own: Any, base: Any) -> Any:
    """`own`, with a whole list where it names NeMo-RL's elements (`policy.scheduler.0.name`)."""
    if not own or not isinstance(own, Mapping):
        return own
    if isinstance(base, list) and own.keys() <= set(map(str, range(len(base)))):
        elements = OmegaConf.create(base)
        for place, value in own.items():
            OmegaConf.update(elements, str(place), value)
        return OmegaConf.to_container(elements)
    below = base if isinstance(base, Mapping) else {}
    return {key: _by_index(value, below.get(key)) for key, value in own.items()}


def _misplaced(
    own: Mapping[Any, Any],
    base: Mapping[Any, Any],
    declared: frozenset[str],
    name: str,
    above: str = "",
) -> Iterator[Finding]:
    """What is no section, or no list, where NeMo-RL has one."""
    for key, value in own.items():
        like = base.get(key)
        path = f"{above}{key}"
        # a text with an interpolation may stand for anything
        plain = "${" not in value if isinstance(value, str) else value is not None
        if isinstance(like, Mapping) and isinstance(value, Mapping):
            yield from _misplaced(value, like, declared, name, f"{path}.")
        elif {type(like), type(value)} == {dict, list}:
            kind = "section" if isinstance(like, Mapping) else "list"
            yield Finding(path, f"must be a {kind}, as in {name}, got {value!r}")
        elif plain and not isinstance(value, (Mapping, list)):
            if isinstance(like, Mapping) or path in _sections(declared):
                yield Finding(path, f"must be a section of key: value pairs, got {value!r}")
            elif isinstance(like, list):
                yield Finding(path, f"must be a list, got {value!r}")


@functools.cache
def _sections(declared: frozenset[str]) -> set[str]:
    """The paths that have others below them."""
    above = (path.split(".")[:-1] for path in declared)
    return {".".join(names[:i]) for names in above for i in range(1, len(names) + 1)}


def _nulls(own: Mapping[Any, Any], base: Mapping[Any, Any], above: str = "") -> Iterator[Finding]:
    """The sections of NeMo-RL's that are null here, from which other keys take their values."""
    for key, value in own.items():
        like = base.get(key)
        path = f"{above}{key}"
        if isinstance(like, Mapping) and isinstance(value, Mapping):
            yield from _nulls(value, like, f"{path}.")
        elif isinstance(like, Mapping) and value is None:
            yield Finding(
                path,
                "it must not be null, because other keys take their values from it. Remove the "
                "line.",
            )


def _merged(base: DictConfig, own: Mapping[str, Any], replaced: Set[str]) -> DictConfig:
    """As NeMo-RL merges: a section with `_override_: true` replaces the other one."""
    merged: Any = pickle.loads(pickle.dumps(base))  # a copy in a third of deepcopy's time
    for key in replaced:
        merged.pop(key, None)
    over = dict(own)
    for key in replaced:
        over[key] = {k: v for k, v in own[key].items() if k != "_override_"}
    with evaluating():
        OmegaConf.unsafe_merge(merged, OmegaConf.create(over))  # `merge_with` copies what it takes
    return merged
