"""The table that an evaluation prints."""

from collections.abc import Callable
from typing import Any

import numpy as np
from rich.table import Column, Table

Measured = dict[str, Any]  # what measure() returns


def table(results: list[Measured]) -> Table:
    """A row per benchmark of the same number of samples, without columns that no benchmark has."""
    n = results[0]["samples"]
    columns: dict[str, Callable[[Measured], str]] = {
        "benchmark": lambda m: m["benchmark"],
        "problems": lambda m: str(m["problems"]),
        "mean": _mean,
        f"pass@{n}": lambda m: _number(m["curves"].get("pass@k")),
        f"maj@{n}": lambda m: _number(m["curves"].get("maj@k")),
        f"UCC@{n}": lambda m: _number(m["curves"].get("ucc@k")),
        "boxed": lambda m: _number(m["scalars"].get("boxed")),
        "unjudged": lambda m: str(sum(x for s, x in m["statuses"].items() if s != "ok")),
    }
    cells = {name: [cell(m) for m in results] for name, cell in columns.items()}
    cells = {name: column for name, column in cells.items() if any(column)}
    first, *rest = cells
    title = f"{n} samples per problem; mean (95 % CI)"
    shown = Table(Column(first, no_wrap=True), *rest, title=title)
    for row in zip(*cells.values(), strict=True):
        shown.add_row(*row)
    return shown


def _mean(measured: Measured) -> str:
    mean = measured["scalars"]["mean"]
    interval = "" if mean["low"] is None else f" ({mean['low']:.3f}, {mean['high']:.3f})"
    return f"{mean['value']:.3f}{interval}"


def _number(measured: Measured | None) -> str:
    """Of a scalar, or of a curve at the largest k."""
    return f"{np.ravel(measured['value'])[-1]:.3f}" if measured else ""
