"""The command `nemo-algos conformance`: cases for any framework, and a function run on them."""

import json
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from nemo_algos.terminal import Console, echo

conformance = typer.Typer(
    add_completion=False, help="Export conformance tests, or run your function on them."
)
Folder = Annotated[Path, typer.Argument(help="output folder")]


@conformance.command()
def export(folder: Folder) -> None:
    """Write the cases, their JSON Schema, and a runner that needs none of this package."""
    from nemo_algos.algorithms.golden.fixture import write  # torch

    write(folder)
    echo(f"written to {folder}; its README.md explains how to use it")


@conformance.command()
def run(
    function: Annotated[str, typer.Argument(help="module:function")],
    method: Annotated[str, typer.Option(help="only this method")] = "",
    trap: Annotated[str, typer.Option(help="only this trap")] = "",
    cases: Annotated[
        Path | None, typer.Option(help="an exported folder; default: generated")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Compare a function with every case; exit 1 where it departs or fails, or passes none."""
    from nemo_algos.algorithms.golden import fixture  # torch

    with _current_folder():
        tested = _function(function)
        rows = fixture.run(
            tested, fixture.read(cases) if cases else fixture.build_fixture(), method, trap
        )
    echo(json.dumps(rows, indent=1)) if as_json else _show(rows)
    verdicts = {row["verdict"] for row in rows}
    raise typer.Exit("pass" not in verdicts or bool(verdicts & {"departs", "fails"}))


@contextmanager
def _current_folder() -> Iterator[None]:
    """Its modules can be imported, while the function runs too."""
    before = sys.path[:]
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path[:] = before


def _function(name: str) -> Any:
    try:
        function = pkgutil.resolve_name(name)
    except (Exception, SystemExit) as error:  # whatever the module's own code raises
        reason = f"cannot import {name!r}: {type(error).__name__}: {error}"
        raise ValueError(f"{reason}. Name it as module:function, on PYTHONPATH.") from error
    if not callable(function):
        kind = type(function).__name__
        raise ValueError(f"{name} is a {kind}. Name a function as module:function.")
    return function


def _show(rows: list[dict[str, Any]]) -> None:
    """A row for a method; below it what is said of those that do not pass."""
    console, cells = Console(highlight=False), {(r["method"], r["trap"]): r for r in rows}
    methods, traps = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    fit = max(1, (console.width - 20) // 15)  # columns
    for some in (methods[i : i + fit] for i in range(0, len(methods), fit)):
        table = Table("", *some)
        for trap in traps:
            table.add_row(trap, *(cell(cells[m, trap]) for m in some))
        console.print(table)
    said = {f"{r['method']}: {r['detail']}" for r in rows if isinstance(r["detail"], str)}
    for line in sorted(said):
        console.print(line, markup=False)


def cell(row: dict[str, Any]) -> str:
    """The verdict, or which quantity departs the most and by how much."""
    if row["verdict"] != "departs":
        return row["verdict"]
    quantity = max(row["detail"], key=row["detail"].__getitem__)
    error = row["detail"][quantity]
    return f"{quantity} {error:.0e}" if error < 1e300 else f"{quantity} NaN"
