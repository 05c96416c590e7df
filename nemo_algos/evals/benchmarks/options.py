"""What the families of benchmarks are given beside the rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from nemo_algos.evals.benchmarks.rows import Row


@dataclass(frozen=True)
class Options:
    """seed: of the options' order. folder: of the file read, for images. databases: folder of the
    SQLite files. counts: what a loader had to change or leave out, counted as it goes."""

    seed: int = 0
    folder: Path = Path()
    databases: str = ""
    counts: Counter[str] = field(default_factory=Counter)

    def id_of(self, row: Row, place: int, *names: str) -> str:
        """The row's own id, else its place (from 0), counted."""
        own = row.get(*names)
        if own is None:
            self.counts["ids from the row number"] += 1
        return str(place if own is None else own)


def info_of(row: Row, *names: str) -> dict[str, str]:
    """What the report shows beside the problem: those of the fields that are there."""
    return {name: str(row.get(name)) for name in names if row.get(name) is not None}
