"""The atlas's cells, computed one by one; a line of cells.jsonl for each, and the table of all."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from functools import cache
from pathlib import Path
from typing import Any

from nemo_algos.jsonl import append_lines, cut_broken_end, read_lines, replace
from nemo_algos.lab.atlas.design import ARMS, Cell, cells

TABLE, LINES = "atlas.csv", "cells.jsonl"
KEYS = ("method", *Cell._fields, "update")
VALUES = (
    "batches", "mismatch", "error", "angle", "size", "noise", "wrong_signs", "forks", "kl", "tv",
    "gain", "gain_per_kl", "entropy", "second",
)  # fmt: skip
Row = dict[str, Any]


def block(arm: str) -> dict[str, Any]:
    """The arm's `method:` block; a name of no arm is a method's."""
    return ARMS.get(arm, {"name": arm})


@cache
def rate(arm: str) -> float:
    """The arm's step size."""
    from nemo_algos.lab.atlas.measure import learning_rate

    return learning_rate(block(arm))


def compute(arm: str, cell: Cell) -> list[Row]:
    """The rows of a cell; on one thread, so that the digits are the same with any number."""
    import torch

    from nemo_algos.lab.atlas.measure import measured

    torch.set_num_threads(1)
    return measured(block(arm), cell, rate(arm))


def go(arms: Iterable[str], folder: Path, processes: Executor) -> Iterator[int]:
    """Compute what the folder lacks, and keep each; the number of cells that are left."""
    path = folder / LINES
    cut_broken_end(path)
    there = found(path)
    left = [(arm, cell) for arm in arms for cell in cells() if (arm, cell) not in there]
    yield len(left)
    results = processes.map(compute, *zip(*left, strict=True)) if left else ()
    for i, ((arm, cell), rows) in enumerate(zip(left, results, strict=True), 1):
        append_lines(path, [{"arm": arm, "cell": [*cell], "rows": rows}])
        yield len(left) - i


def found(path: Path) -> dict[tuple[str, Cell], list[Row]]:
    """The cells of a file of lines."""
    return {(x["arm"], Cell(*x["cell"])): x["rows"] for x in read_lines(path)}


def rows(arms: Iterable[str], folder: Path) -> list[dict[str, str]]:
    """The table of these arms, in the design's order, as it is printed."""
    there = found(folder / LINES)
    return [
        {k: printed(v) for k, v in {"method": arm, **cell._asdict(), **row}.items()}
        for arm in arms
        for cell in cells()
        for row in there[arm, cell]
    ]


def printed(value: Any) -> str:
    """Four digits; 0 for what rounding left of it."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) > 1e-9 else "0"
    return "" if value is None else str(value)


def write(table: Iterable[Mapping[str, str]], folder: Path) -> None:
    """atlas.csv."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*KEYS, *VALUES], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    replace(folder / TABLE, text.getvalue())


def read(path: Path) -> dict[tuple[str, Cell, int], dict[str, float]]:
    """A table's values by method, cell and update; an empty value is left out."""
    with open(path, newline="") as file:
        lines = [*csv.DictReader(file)]
    kinds = Cell._field_defaults
    return {
        (
            line["method"],
            Cell(*(type(kinds[k])(line[k]) for k in kinds)),
            int(line["update"]),
        ): {k: float(line[k]) for k in VALUES if line[k]}
        for line in lines
    }
