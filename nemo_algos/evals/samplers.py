"""Where responses come from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

from nemo_algos.evals.problem import Problem
from nemo_algos.evals.schema import EndpointModel, LocalModel, SamplingSection
from nemo_algos.evals.store import Generation

Wanted = list[tuple[Problem, list[int]]]  # the samples that each problem lacks
Add = Callable[[list[Generation]], None]


class Sampler(Protocol):
    """A model that answers. identity: what its responses depend on, besides prompt and sampling."""

    identity: dict[str, Any]

    def sample(self, wanted: Wanted, add: Add) -> None:
        """Give `add` the wanted responses as they come, in any order, some at a time."""
        ...


def sampler(
    model: LocalModel | EndpointModel, sampling: SamplingSection, say: Callable[[str], object]
) -> Sampler:
    """Ready to sample; `say` is told what a user should know. Raises ValueError where the model is
    not there."""
    if isinstance(model, EndpointModel):
        from nemo_algos.evals.endpoint import Endpoint

        return Endpoint(model, sampling, say)
    from nemo_algos.evals.local_sampler import LocalSampler

    return LocalSampler(model, sampling)


def seed_of(*parts: object) -> int:
    """31 bits that are the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4]) >> 1
