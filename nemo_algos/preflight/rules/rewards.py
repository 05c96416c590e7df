"""One's own rewards in a NeMo-RL run: the sections of `env` that name a verifier of ours."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from nemo_algos.config import ConfigError, Finding, Section, validate
from nemo_algos.local.given import found, named, verifier
from nemo_algos.preflight.keys import ENVIRONMENTS, FOREIGN
from nemo_algos.preflight.rule import Preflight, error


class VerifierConfig(Section):
    """A section of `env`: "module:function" twice (extractor: of cons@k), the pool's arguments."""

    verifier: str
    extractor: str = "nemo_algos.rewards.answers:boxed"
    workers: PositiveInt = 8
    deadline: PositiveFloat = 5.0
    memory_mb: PositiveInt = 2048
    max_chars: PositiveInt = 1_000_000


def sections(env: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Those that name a verifier, by the environment's name."""
    return {n: s for n, s in env.items() if isinstance(s, Mapping) and "verifier" in s}


def own_rewards(run: Preflight) -> Iterator[Finding]:
    """Its function can be imported, and is given what it asks for: a response and an answer."""
    for name, section in sections(run["env"] or {}).items():
        path = f"env.{name}"
        if name in (*ENVIRONMENTS, *FOREIGN):
            yield error(path, "is NeMo-RL's own environment: give yours another name")
            continue
        try:
            settings = validate(VerifierConfig, dict(section), path)
        except ConfigError as wrong:
            yield from wrong.findings
            continue
        yield from found(verifier, settings.verifier, f"{path}.verifier")
        yield from found(_extractor, settings.extractor, f"{path}.extractor")


def _extractor(name: str, key: str) -> None:
    """Raises ConfigError for what cannot be called with a response alone."""
    function = named(name, key)
    try:
        inspect.signature(function).bind("response")
    except TypeError as wrong:
        reason = f"{name} must be a function of the response alone: {wrong}"
        raise ConfigError([Finding(key, reason)]) from None
