"""Where responses come from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

from nemo_algos.evals.problem import Problem
from nemo_algos.evals.store import Generation

Wanted = list[tuple[Problem, list[int]]]  # the samples that each problem lacks
Add = Callable[[list[Generation]], None]


class Sampler(Protocol):
    """A model that answers. identity: what its responses depend on, besides prompt and sampling."""

    identity: dict[str, Any]

    def sample(self, wanted: Wanted, add: Add) -> None:
        """Give `add` the wanted responses as they come, in any order, some at a time."""
        ...


def seed_of(*parts: object) -> int:
    """31 bits that are the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4]) >> 1
