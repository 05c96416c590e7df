"""The `nemo-algos` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from nemo_algos.scale.plan_cli import plan

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The policy-gradient methods after GRPO, for NVIDIA NeMo-RL and for a laptop.",
)
console = Console()
app.command()(plan)


@app.callback()
def _commands() -> None: ...


@app.command()
def methods() -> None:
    """List the methods: ratio, bounds, mean, what they need, paper and defaults."""
    from nemo_algos.methods import METHODS

    table = Table(*("method", "ratio", "clips", "mean", "needs", "paper", "defaults"))
    for method in METHODS.values():
        defaults = {k: v for k, v in method.params().model_dump().items() if v is not None}
        mean = defaults.get("aggregation", method.mean)
        ratio = {"ratio": method.ratio, "logprob": "none: A' log pi"}[method.form]
        table.add_row(
            method.name,
            ratio,
            method.clips or "nothing",
            mean,
            ", ".join(sorted(method.needs)) or "-",
            method.paper,
            " ".join(f"{k}={v}" for k, v in defaults.items()),
        )
    console.print(table)


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="golden file, .json or .json.gz")],
    tolerance: Annotated[float | None, typer.Option(help="default: the file's own")] = None,
) -> None:
    """Compare this code with a golden file of float64 numbers; exit 1 where an error exceeds the
    tolerance."""
    from nemo_algos.verify import errors_of, read

    try:
        golden = read(file)
        errors = [e for case in golden["cases"] for e in errors_of(case)]
    except ValueError as error:
        console.print(f"[red]error[/red] {error}")
        raise typer.Exit(2) from None
    limit = tolerance if tolerance is not None else float(golden.get("tolerance", 1e-6))
    table = Table("method", "quantity", "cases", "largest error", "in case", "")
    for method, quantity in dict.fromkeys((e.method, e.quantity) for e in errors):
        of_kind = [e for e in errors if (e.method, e.quantity) == (method, quantity)]
        worst = max(of_kind, key=lambda e: e.error)
        verdict = "[green]ok" if worst.error <= limit else "[red]ABOVE TOLERANCE"
        table.add_row(
            method, quantity, str(len(of_kind)), f"{worst.error:.1e}", worst.case, verdict
        )
    console.print(table)
    failed = [e for e in errors if not e.error <= limit]
    for e in failed:
        console.print(f"[red]{e.case}[/red] {e.quantity}: error {e.error:.3e} > {limit:g}")
    console.print(f"{len(golden['cases'])} cases, {len(failed)} quantities above {limit:g}")
    raise typer.Exit(1 if failed else 0)


def main() -> None:
    """Entry point."""
    app()
