"""The sections of NeMo-RL's `env` that name a verifier of ours."""

from collections.abc import Mapping
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from nemo_algos.config import Section


class VerifierConfig(Section):
    """A section of `env`: a verifier and an extractor (of cons@k), the pool's arguments."""

    verifier: str
    extractor: str = "boxed"
    workers: PositiveInt = 8
    deadline: PositiveFloat = 5.0
    memory_mb: PositiveInt = 2048
    max_chars: PositiveInt = 1_000_000


def sections(env: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Those that name a verifier, by the environment's name."""
    return {n: s for n, s in env.items() if isinstance(s, Mapping) and "verifier" in s}
