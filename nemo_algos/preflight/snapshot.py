"""NeMo-RL's own configs and key tree as shipped with this package, and a user's config over them.

What nemo_algos.nemo.launch.compose does with NeMo-RL installed, without it.
"""

from __future__ import annotations

import functools
import json
import lzma
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_algos.config import ConfigError, Finding, did_you_mean, resolved
from nemo_algos.preflight.decided import OURS, base_name, unknown_keys

VERSIONS = ("v0.7.0", "main")
RESOLVERS = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": lambda a, b: max(a, b),
}


class Snapshot(NamedTuple):
    """declared: paths of NeMo-RL's typed keys; configs: its GRPO configs by name below
    examples/configs."""

    version: str
    declared: frozenset[str]
    configs: dict[str, dict[str, Any]]


def path_of(version: str) -> Path:
    """Of a version's file."""
    return Path(__file__).parent / "nemo_rl" / f"{version}.json.xz"


@functools.cache
def load(version: str) -> Snapshot:
    """Raises ValueError for a version that is not shipped."""
    if version not in VERSIONS:
        raise ValueError(f"no snapshot of NeMo-RL {version}: choose {' or '.join(VERSIONS)}")
    taken = json.loads(lzma.decompress(path_of(version).read_bytes()))
    return Snapshot(version, frozenset(taken["declared"]), taken["configs"])


class Composed(NamedTuple):
    """plain: NeMo-RL's config with ours over it, resolved; written: the user's keys; problems: keys
    that NeMo-RL does not know."""

    plain: dict[str, Any]
    written: dict[str, Any]
    problems: list[Finding]


def compose(written: DictConfig, snapshot: Snapshot) -> Composed:
    """A config with `engine: nemo_rl` over NeMo-RL's that it names (`nemo_rl.config`).

    Raises ConfigError where this version has no such config, or the two do not go together, or an
    interpolation cannot be resolved.
    """
    _register_resolvers()
    own = OmegaConf.to_container(written)
    assert isinstance(own, dict)
    name = base_name(own)
    if name not in snapshot.configs:
        near = did_you_mean(name, sorted(snapshot.configs))
        message = f"NeMo-RL {snapshot.version} has no {name}{near}"
        raise ConfigError([Finding("nemo_rl.config", message)])
    base = snapshot.configs[name]
    problems = unknown_keys(
        {k: v for k, v in own.items() if k not in OURS}, base, snapshot.declared
    )
    try:
        merged = _merged(OmegaConf.create(base), written.copy())
    except TypeError:  # of OmegaConf, which names no key
        what = f"a key is a list in one and a section in the other of this config and {name}"
        raise ConfigError([Finding("", f"{what}: write it as {name} does")]) from None
    plain = resolved(merged)
    return Composed(plain, {str(k): v for k, v in own.items()}, problems)


def _register_resolvers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # omegaconf 2.4 renames it, to a name with another meaning in 2.3
        for name in RESOLVERS:
            if not OmegaConf.has_resolver(name):
                OmegaConf.register_new_resolver(name, RESOLVERS[name])


def _merged(base: DictConfig, over: DictConfig) -> DictConfig:
    """As NeMo-RL merges: a section with `_override_: true` replaces the other one."""
    for key, section in over.items_ex(resolve=False):
        if isinstance(section, DictConfig) and section.pop("_override_", False):
            base.pop(key, None)
    merged = OmegaConf.merge(base, over)
    assert isinstance(merged, DictConfig)
    return merged
