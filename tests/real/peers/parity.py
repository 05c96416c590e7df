"""The largest differences that the comparisons found, by method and what it was compared with."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

FIGURES: dict[tuple[str, str], list[Sequence[float | None]]] = {}


def record(method: str, against: str, loss: float | None, gradient: float) -> None:
    """Differences of one batch; loss: None where the values are not those of one function."""
    FIGURES.setdefault((method, against), []).append((loss, gradient))


def write(path: str) -> None:
    """A row each, the largest of all batches."""
    with Path(path).open("w", newline="") as file:
        line = csv.writer(file, lineterminator="\n").writerow
        line(("method", "against", "loss", "gradient"))
        for names, found in sorted(FIGURES.items()):
            line((*names, *(largest(values) for values in zip(*found, strict=True))))


def largest(values: Sequence[float | None]) -> str:
    """Rounded up to a power of ten, so that another machine's rounding is no change."""
    known = [value for value in values if value is not None]
    return f"1e{math.ceil(math.log10(max(*known, 1e-17)))}" if known else ""
