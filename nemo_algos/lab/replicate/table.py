"""A paper's table with our numbers beside the printed ones, and what they say of each other."""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nemo_algos.lab.replicate.found import Results, Value
from nemo_algos.lab.replicate.manifest import Item, PaperCell
from nemo_algos.lab.report.numbers import MISSING, format_number

ONE_SEED = (
    "One seed a run: an interval is over problems and says what other problems would do, not "
    "another seed. A difference between two rows of one seed each may be the seed's."
)
HEADINGS = ("table", "row", "column", "run", "ours", "low", "high", "seeds", "printed", "spread")


class ComparedCell(NamedTuple):
    """A cell with our number. verdict: within, below, above, or empty; reasons: what it lacks."""

    cell: PaperCell
    value: Value | None
    verdict: str
    reasons: tuple[str, ...] = ()

    @property
    def ours(self) -> str:
        """0.71 [0.68, 0.74], or a dash."""
        if self.value is None:
            return MISSING
        value, low, high, _ = self.value
        return (
            f"{format_number(value)} [{format_number(low)}, {format_number(high)}]"
            if low is not None
            else format_number(value)
        )

    @property
    def theirs(self) -> str:
        """As printed, with the paper's spread; empty where nothing is."""
        if self.cell.printed is None:
            return ""
        spread = f" ± {self.cell.spread:g}" if self.cell.spread is not None else ""
        return f"{self.cell.printed:g}{spread}"


class ComparedTable(NamedTuple):
    """Rows of a block, each with its label."""

    title: str
    columns: list[str]
    rows: list[tuple[str, list[ComparedCell]]]


def verdict(value: Value, printed: float | None, spread: float | None) -> str:
    """Where our interval lies beside the printed number, or beside what its spread covers."""
    if printed is None or value.low is None or value.high is None:
        return ""
    if value.low > printed + (spread or 0.0):
        return "above"
    return "below" if value.high < printed - (spread or 0.0) else "within"


def tables(results: Results, item: Item) -> list[ComparedTable]:
    """A table of each block, in the paper's layout."""
    return [
        ComparedTable(
            block.title,
            block.columns,
            [(r.label, [_compare(results, item, c) for c in block.cells(r)]) for r in block.rows],
        )
        for block in item.blocks
    ]


def _compare(results: Results, item: Item, cell: PaperCell) -> ComparedCell:
    value, reasons = results.value(item, cell)
    said = verdict(value, cell.printed, cell.spread) if value else ""
    return ComparedCell(cell, value, said, tuple(reasons))


def every(made: Sequence[ComparedTable]) -> Iterator[ComparedCell]:
    """The cells, row by row."""
    return (cell for table in made for _, row in table.rows for cell in row)


def notes(made: Sequence[ComparedTable], seeds: int) -> list[str]:
    """What the seeds leave open."""
    counts = {cell.value.seeds for cell in every(made) if cell.value}
    said = [ONE_SEED] if 1 in counts else []
    fewer = counts and min(counts) < seeds
    return [*said, *([f"The paper has {seeds} seeds, here are {min(counts)}."] if fewer else [])]


def markdown(made: Sequence[ComparedTable]) -> str:
    """Ours with its interval, the printed number in brackets with the verdict."""
    parts = list[str]()
    for table in made:
        parts += [f"**{table.title}**\n"] if table.title else []
        parts.append(f"| | {' | '.join(table.columns)} |\n|---|{'---|' * len(table.columns)}")
        parts += [f"| {name} | {' | '.join(map(_format, row))} |" for name, row in table.rows]
        parts.append("")
    return "\n".join(parts)


def _format(cell: ComparedCell) -> str:
    beside = ", ".join(part for part in (cell.theirs, cell.verdict) if part)
    return f"{cell.ours} ({beside})" if beside else cell.ours


def as_csv(made: Sequence[ComparedTable]) -> str:
    """A row per cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*HEADINGS, "verdict", "missing"))
    for table in made:
        for label, row in table.rows:
            for column, one in zip(table.columns, row, strict=True):
                value = one.value or ("", "", "", "")
                printed = one.cell.printed, one.cell.spread, one.verdict, "; ".join(one.reasons)
                writer.writerow((table.title, label, column, one.cell.run, *value, *printed))
    return out.getvalue()
