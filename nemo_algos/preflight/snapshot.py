"""NeMo-RL's own configs and keys, as shipped with this package, and a user's config over them."""

import functools
import json
import lzma
import pickle
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_algos.config import ConfigError, Finding, did_you_mean, resolved
from nemo_algos.preflight.decided import OURS, base_name
from nemo_algos.preflight.keys import unknown_keys

VERSIONS = ("v0.7.0", "main")
RESOLVERS = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": lambda a, b: max(a, b),
}


class Release(NamedTuple):
    """What a run is judged by: a NeMo-RL, shipped here (`load`) or installed (`nemo.launch`).

    version: of VERSIONS; declared: paths of its typed keys; configs: its GRPO configs by name below
    examples/configs, interpolations as written; trees: those that OmegaConf has taken in.
    """

    version: str
    declared: frozenset[str]
    configs: Mapping[str, dict[str, Any]]
    trees: dict[str, DictConfig]


def path_of(version: str) -> Path:
    """The file of a version."""
    return Path(__file__).parent / "nemo_rl" / f"{version}.json.xz"


@functools.cache
def load(version: str) -> Release:
    """Raises ValueError for a version that is not shipped."""
    if version not in VERSIONS:
        raise ValueError(f"no snapshot of NeMo-RL {version}: choose {' or '.join(VERSIONS)}")
    taken = json.loads(lzma.decompress(path_of(version).read_bytes()))
    return Release(version, frozenset(taken["declared"]), taken["configs"], {})


class Composed(NamedTuple):
    """A config over NeMo-RL's.

    plain: both, resolved; written: the user's keys; base, tree: NeMo-RL's, interpolations as
    written; unknown: keys that NeMo-RL does not have.
    """

    plain: dict[str, Any]
    written: dict[str, Any]
    base: Mapping[str, Any]
    tree: DictConfig
    unknown: list[Finding]


def compose(written: DictConfig, release: Release) -> Composed:
    """A config with `engine: nemo_rl` over NeMo-RL's that it names (`nemo_rl.config`).

    Raises ConfigError where NeMo-RL has no such config, or the two do not go together, or an
    interpolation cannot be resolved.
    """
    _register_resolvers()
    own: Any = OmegaConf.to_container(written)
    name = base_name(own)
    if name not in release.configs:
        what = f"NeMo-RL {release.version} has no {name}"
        near = did_you_mean(name, sorted(release.configs))
        raise ConfigError([Finding("nemo_rl.config", f"{what}{near}")])
    if name not in release.trees:
        release.trees[name] = OmegaConf.create(release.configs[name])
    base, tree = release.configs[name], release.trees[name]
    unknown = unknown_keys({k: v for k, v in own.items() if k not in OURS}, base, release.declared)
    replaced = {k for k, v in own.items() if isinstance(v, Mapping) and v.get("_override_")}
    if clashes := list(_clashes({k: own[k] for k in own.keys() - replaced}, base, name)):
        raise ConfigError([*unknown, *clashes])
    try:
        plain = resolved(_merged(tree, written.copy()))
    except ConfigError as error:
        raise ConfigError([*unknown, *error.findings]) from None
    return Composed(plain, {str(k): v for k, v in own.items()}, base, tree, unknown)


def _clashes(
    own: Mapping[Any, Any], base: Mapping[Any, Any], name: str, above: str = ""
) -> Iterator[Finding]:
    """Lists in place of sections and sections in place of lists, which no merge takes."""
    for key, value in own.items():
        like, path = base.get(key), f"{above}{key}"
        if isinstance(like, Mapping) and isinstance(value, Mapping):
            yield from _clashes(value, like, name, f"{path}.")
        elif {type(like), type(value)} == {dict, list}:
            kind = "section" if isinstance(like, Mapping) else "list"
            yield Finding(path, f"is a {kind} in {name}: write it as {name} does")


def _register_resolvers() -> None:
    with warnings.catch_warnings():
        # omegaconf 2.4 renames it, to a name with another meaning in 2.3
        warnings.simplefilter("ignore")
        for name in RESOLVERS:
            if not OmegaConf.has_resolver(name):
                OmegaConf.register_new_resolver(name, RESOLVERS[name])


def _merged(base: DictConfig, over: DictConfig) -> DictConfig:
    """As NeMo-RL merges: a section with `_override_: true` replaces the other one."""
    merged: DictConfig = pickle.loads(pickle.dumps(base))  # a copy in a third of deepcopy's time
    for key, section in over.items_ex(resolve=False):
        if isinstance(section, DictConfig) and section.get("_override_"):
            section.pop("_override_")
            merged.pop(key, None)
    merged.merge_with(over)
    return merged
