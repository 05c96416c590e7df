"""The command `nemo-algos verify`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from nemo_algos.terminal import Console


def verify(
    file: Annotated[Path, typer.Argument(help="golden file, .json or .json.gz")],
    tolerance: Annotated[
        float | None, typer.Option(help="default: the tolerance in the file")
    ] = None,
) -> None:
    """Compare this code with a golden file of float64 numbers; exit 1 where it differs."""
    from nemo_algos.algorithms.golden.verify import errors_of, read  # torch

    golden = read(file)
    errors = [error for case in golden["cases"] for error in errors_of(case)]
    limit = float(golden.get("tolerance", 1e-6)) if tolerance is None else tolerance
    table = Table("method", "quantity", "cases", "largest error", "in case", "")
    for kind in dict.fromkeys((e.method, e.quantity) for e in errors):
        alike = [e for e in errors if (e.method, e.quantity) == kind]
        worst = max(alike, key=lambda e: e.error)
        verdict = "[green]ok" if worst.error <= limit else "[red]ABOVE"
        row = (*kind, str(len(alike)), f"{worst.error:.1e}", worst.case)
        table.add_row(*map(escape, row), verdict)
    console = Console(highlight=False)
    console.print(table)
    failed = [e for e in errors if not e.error <= limit]
    for e in failed:
        wrong = f"{e.case} {e.quantity}: error {e.error:.3e} > {limit:g}"
        console.print(wrong, style="red", markup=False)
    console.print(f"{len(golden['cases'])} cases, {len(failed)} quantities above {limit:g}")
    raise typer.Exit(1 if failed else 0)
