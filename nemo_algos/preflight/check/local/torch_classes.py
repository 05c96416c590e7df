"""Torch's own optimizers and schedulers, as far as they are known to work without loading torch.

torch_classes.json is written by scripts/torch_classes.py from the installed torch.
"""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_algos.engines.local.schema import Milestones, TorchClass

FILE = Path(__file__).with_suffix(".json")


@functools.cache
def _table() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def known_to_work(optimizer: TorchClass, entries: Sequence[TorchClass | Milestones]) -> bool:
    """Whether `rehearse` would find nothing; False where torch alone can tell."""
    schedulers = [entry for entry in entries if isinstance(entry, TorchClass)]
    ends = [end for e in entries if isinstance(e, Milestones) for end in e.milestones]
    in_order = ends == sorted({end for end in ends if end > 0})
    return (
        (in_order and len(ends) == max(len(schedulers) - 1, 0))
        and _fits(optimizer, _table()["optimizers"])
        and all(_fits(scheduler, _table()["schedulers"]) for scheduler in schedulers)
    )


def _fits(component: TorchClass, classes: dict[str, Any]) -> bool:
    known = classes.get(component.name)
    kwargs = component.kwargs
    if known is None or not {*known["needs"]} <= kwargs.keys() <= known["takes"].keys():
        return False
    return all(_within(value, *known["takes"][name]) for name, value in kwargs.items())


def _within(value: Any, low: float, high: float, length: int) -> bool:
    """Whether a number, or each of so many, lies in the range and is of its kind."""
    if length:
        each = isinstance(value, list) and len(value) == length
        return each and all(_within(one, low, high, 0) for one in value)
    return type(value) in (int, type(low)) and low <= value <= high
