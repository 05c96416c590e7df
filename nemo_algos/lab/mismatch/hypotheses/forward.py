"""What every hypothesis about the forward has: candidates that are tried one after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from nemo_algos.lab.mismatch.network import Change, Network
from nemo_algos.lab.mismatch.responses import Responses

HELPS = 0.95  # of the level before: a search goes on near a value that comes below


@dataclass(frozen=True)
class Case:
    """What is at hand. previous: of each earlier checkpoint, adapter: of the LoRA, by name.

    pad: the id; longest: prompt's tokens; micro_batches: sizes in which prompts would be padded;
    responses: that candidates are tried on; apart, scale [N]: of their tokens, how far the record
    is from what is predicted, in standard deviations, and one of these, nats.
    """

    network: Network
    previous: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    adapter: dict[str, Tensor] = field(default_factory=dict)
    pad: int = 0
    longest: int = 0
    micro_batches: Sequence[int] = ()
    responses: Responses = field(default_factory=lambda: Responses(()))
    apart: np.ndarray = field(default_factory=lambda: np.zeros(0))
    scale: np.ndarray = field(default_factory=lambda: np.zeros(0))


Trial = tuple[dict[str, Any], Change]
# yields a candidate, is sent the level that is left of 1
Candidates = Generator[Trial, float, None]


@dataclass(frozen=True)
class Hypothesis:
    """name: of the cause; candidates: of a case; none where it lacks what they need.

    far: it has so many that near rounding one of them fits by chance.
    """

    name: str
    candidates: Callable[[Case], Candidates]
    far: bool = False


def next_of(candidates: Candidates, level: float | None) -> Trial | None:
    """The next candidate, after the level of the one before; None of no more."""
    try:
        return candidates.send(level)  # pyright: ignore[reportArgumentType], None starts it
    except StopIteration:
        return None


def each(trials: Sequence[Trial]) -> Candidates:
    """All of them."""
    for trial in trials:  # noqa: UP028, a list takes no level
        yield trial


def search_grid(
    name: str, grid: Sequence[float], change: Callable[[Any], Change], whole: bool, steps: int = 5
) -> Candidates:
    """A grid, then between the neighbours of its best value, if that helps at all."""
    levels: dict[float, float] = {}
    for value in grid:
        levels[value] = yield {name: value}, change(value)
    for _ in range(steps if levels else 0):
        best = min(levels, key=levels.__getitem__)
        if levels[best] > HELPS:
            return
        known = sorted(levels)
        i = known.index(best)
        gaps = [(known[j], known[j + 1]) for j in (i - 1, i) if 0 <= j < len(known) - 1]
        low, high = max(gaps, key=lambda gap: gap[1] - gap[0])
        value = (low + high) // 2 if whole else (low + high) / 2
        if value in levels:
            return
        levels[value] = yield {name: value}, change(value)


def of_lines(edit: Callable[..., Any]) -> Change:
    """A change of what the model is shown: edit(network, lines, responses)."""

    @contextmanager
    def change(network: Network, shown: Any, some: Any) -> Any:
        yield edit(network, shown, some)

    return change


def of_model(edit: Callable[..., Any]) -> Change:
    """A change of the model: edit(network) is a context."""

    @contextmanager
    def change(network: Network, shown: Any, some: Any) -> Any:
        with edit(network):
            yield shown

    return change
