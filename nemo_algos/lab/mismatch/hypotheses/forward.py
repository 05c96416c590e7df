"""What every hypothesis about the forward has: candidates that are tried one after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_algos.lab.mismatch.network import Change, Network

HELPS = 0.95  # of the level before: a search goes on near a value that comes below


@dataclass(frozen=True)
class Case:
    """What is at hand. weights: of each earlier checkpoint, adapter: of the LoRA, by name.

    pad: the id; longest: prompt's tokens; micro_batches: sizes in which prompts would be padded.
    """

    network: Network
    previous: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    adapter: dict[str, Tensor] = field(default_factory=dict)
    pad: int = 0
    longest: int = 0
    micro_batches: Sequence[int] = ()


Trial = tuple[dict[str, Any], Change]
# yields a candidate, is sent the level that is left of 1
Candidates = Generator[Trial, float, None]


@dataclass(frozen=True)
class Hypothesis:
    """name: of the cause; candidates: of a case; none where it lacks what they need."""

    name: str
    candidates: Callable[[Case], Candidates]


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


def weights(folder: Path) -> dict[str, Tensor]:
    """Of a folder's safetensors, by name. Raises ValueError where there are none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no .safetensors file. Name the folder of a checkpoint.")
    try:
        return {k: v for file in files for k, v in load_file(file).items()}
    except (SafetensorError, OSError, torch.OutOfMemoryError) as error:
        raise ValueError(f"{folder}: {error}") from None
