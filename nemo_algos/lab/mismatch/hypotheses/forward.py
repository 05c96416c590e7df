"""What every hypothesis about the forward has: candidates that are tried one after the other."""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from nemo_algos.lab.mismatch.network import (
    Change,
    Network,
    edit_attributes,
    edit_outputs,
    modules,
)
from nemo_algos.lab.mismatch.responses import Responses

HELPS = 0.95  # of the level before: a search goes on near a value that comes below


@dataclass(frozen=True)
class Case:
    """What is at hand. previous: of each earlier checkpoint, adapter: of the LoRA, by name.

    side: sampler or trainer, which is tried; pad: the id; longest: prompt's tokens; micro_batches:
    sizes in which prompts would be padded; responses: that candidates are tried on; apart, scale
    [N]: of their tokens, how far the record is from what is predicted, in standard deviations, and
    one of these, nats; temperature: that the tokens are drawn at.
    """

    network: Network
    previous: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    adapter: dict[str, Tensor] = field(default_factory=dict)
    side: str = "sampler"
    pad: int = 0
    longest: int = 0
    micro_batches: Sequence[int] = ()
    responses: Responses = field(default_factory=lambda: Responses(()))
    apart: np.ndarray = field(default_factory=lambda: np.zeros(0))
    scale: np.ndarray = field(default_factory=lambda: np.zeros(0))
    temperature: float = 1.0


# a parameter and its change are tried: the level that they leave, of 1
Attempt = Callable[[dict[str, Any], Change], float]


@dataclass(frozen=True)
class Hypothesis:
    """name: of the cause; attempt: tries its candidates; none where the case lacks what they need.

    far: it has so many that near rounding one of them fits by chance.
    """

    name: str
    attempt: Callable[[Case, Attempt], object]
    far: bool = False


def named(*attempts: Callable[[Case, Attempt], object]) -> list[Hypothesis]:
    """Hypotheses whose causes are called as these functions are."""
    return [Hypothesis(attempt.__name__, attempt) for attempt in attempts]


def search_grid(
    attempt: Attempt,
    name: str,
    grid: Sequence[float],
    change: Callable[[Any], Change],
    steps: int = 5,
) -> float:
    """A grid, then between the neighbours of its best value, if it helps; integers stay so.

    The least level of all, 1 without any.
    """
    levels = {value: attempt({name: value}, change(value)) for value in grid}
    whole = all(isinstance(value, int) for value in grid)
    for _ in range(steps if len(levels) > 1 else 0):
        known, best = sorted(levels), min(levels, key=levels.__getitem__)
        if levels[best] > HELPS:
            break
        gaps = [gap for gap in pairwise(known) if best in gap]
        low, high = max(gaps, key=lambda gap: gap[1] - gap[0])
        value = (low + high) // 2 if whole else (low + high) / 2
        if value in levels:
            break
        levels[value] = attempt({name: value}, change(value))
    return min(levels.values(), default=1.0)


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


def of_attribute(name: str, edit: Callable[[Any], Any]) -> Change:
    """Each module that has an attribute of this name has edit(attribute)."""

    def edited(network: Network) -> Any:
        of = {k: m for k, m in network.model.named_modules() if hasattr(m, name)}
        return edit_attributes(of, name, lambda _, value: edit(value))

    return of_model(edited)


def of_outputs(edit: Callable[[Any], Any], *endings: str) -> Change:
    """The modules whose names end so give edit(output)."""
    return of_model(lambda n: edit_outputs(modules(n, *endings), lambda _, y: edit(y)))
