"""The cells of the atlas, computed one by one into its table, atlas.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import cache
from pathlib import Path
from typing import Any

from cells import ARMS, UPDATES, Cell, cells

from nemo_algos.jsonl import cut_broken_end, replace

KEYS = ("method", *Cell._fields, "update")
VALUES = (
    "batches", "mismatch", "error", "angle", "size", "noise", "wrong_signs", "forks", "kl", "tv",
    "gain", "gain_per_kl", "entropy", "second",
)  # fmt: skip
HEAD = ",".join((*KEYS, *VALUES)) + "\n"
Table = dict[tuple[str, Cell, int], dict[str, str]]


def block(arm: str) -> dict[str, Any]:
    """The arm's `method:` block; a name of no arm is a method's."""
    return ARMS.get(arm, {"name": arm})


@cache
def rate(arm: str) -> float:
    """The arm's step size."""
    from measure import learning_rate

    return learning_rate(block(arm))


def compute(arm: str, cell: Cell) -> list[dict[str, Any]]:
    """The rows of a cell; on one thread, so that the digits are the same with any number."""
    import torch
    from measure import measured

    torch.set_num_threads(1)
    return measured(block(arm), cell, rate(arm))


def missing(arms: Sequence[str], table: Table) -> list[tuple[str, Cell]]:
    """What a table lacks of these arms' cells."""
    pairs = [(arm, cell) for arm in arms for cell in cells()]
    return [(a, c) for a, c in pairs if any((a, c, n) not in table for n in UPDATES[c.updates])]


def go(left: Sequence[tuple[str, Cell]], path: Path, processes: Executor) -> Iterator[None]:
    """Compute these, each cell's rows at once at the end of the file."""
    results = processes.map(compute, *zip(*left, strict=True)) if left else ()
    for (arm, cell), rows in zip(left, results, strict=True):
        keyed = [{"method": arm, **cell._asdict(), **row} for row in rows]
        with open(path, "a") as file:
            file.write("".join(line(row) for row in keyed))
        yield


def line(row: Mapping[str, Any]) -> str:
    """As the table has it; nothing in it needs quotes."""
    return ",".join(printed(row.get(k)) for k in (*KEYS, *VALUES)) + "\n"


def printed(value: Any) -> str:
    """Four digits; 0 for what rounding left of it; nothing for NaN."""
    if isinstance(value, float):
        return "" if value != value else f"{value:.4g}" if abs(value) > 1e-9 else "0"
    return "" if value is None else str(value)


def read(path: Path) -> Table:
    """The rows of a file, without one that a kill has cut, by method, cell and update."""
    if not path.exists():
        path.write_text(HEAD)
    cut_broken_end(path)
    kinds = {k: type(v) for k, v in Cell._field_defaults.items()}
    with open(path, newline="") as file:
        return {
            (r["method"], Cell(*(kind(r[k]) for k, kind in kinds.items())), int(r["update"])): r
            for r in csv.DictReader(file)
        }


def in_order(table: Table, path: Path) -> None:
    """The file again, its rows as the design has them, and other methods' below."""
    arms, places = [*dict.fromkeys([*ARMS, *(key[0] for key in table)])], [*cells()]
    ordered = sorted(table, key=lambda k: (arms.index(k[0]), places.index(k[1]), k[2]))
    replace(path, HEAD + "".join(line(table[key]) for key in ordered))
