"""The table that an evaluation prints."""

from collections.abc import Callable
from typing import Any

from rich.table import Column, Table

Metrics = dict[str, Any]


def table(results: list[Metrics]) -> Table:
    """A row per benchmark of the same number of samples, without columns that no benchmark has."""
    n = results[0]["samples"]
    columns: dict[str, Callable[[Metrics], str]] = {
        "benchmark": lambda m: m["benchmark"],
        "problems": lambda m: str(m["problems"]),
        "mean": _mean,
        f"pass@{n}": lambda m: _last(m, "pass@k"),
        f"maj@{n}": lambda m: _last(m, "maj@k"),
        f"UCC@{n}": lambda m: _last(m, "ucc@k"),
        "boxed": _boxed,
        "unjudged": lambda m: str(sum(x for s, x in m["statuses"].items() if s != "ok")),
    }
    cells = {name: [cell(m) for m in results] for name, cell in columns.items()}
    cells = {name: column for name, column in cells.items() if any(column)}
    first, *rest = cells
    title = f"{n} samples per problem; mean with its 95 % interval"
    shown = Table(Column(first, no_wrap=True), *rest, title=title)
    for row in zip(*cells.values(), strict=True):
        shown.add_row(*row)
    return shown


def _mean(metrics: Metrics) -> str:
    mean = metrics["scalars"]["mean"]
    if mean["low"] is None:
        return f"{mean['value']:.3f}"
    return f"{mean['value']:.3f} ({mean['low']:.3f}, {mean['high']:.3f})"


def _boxed(metrics: Metrics) -> str:
    boxed = metrics["scalars"].get("boxed")
    return f"{boxed['value']:.3f}" if boxed else ""


def _last(metrics: Metrics, name: str) -> str:
    """A curve's value at the largest k."""
    curve = metrics["curves"].get(name)
    return f"{curve['value'][-1]:.3f}" if curve else ""
