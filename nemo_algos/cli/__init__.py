"""The `nemo-algos` command."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nemo_algos.cli.eval import evaluate
from nemo_algos.cli.plan import plan
from nemo_algos.cli.report import report
from nemo_algos.cli.slurm import app as slurm

if TYPE_CHECKING:
    from nemo_algos.config import Finding


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The policy-gradient methods after GRPO, for NVIDIA NeMo-RL and for a laptop.",
)
console = Console()
app.command("eval")(evaluate)
app.command()(plan)
app.command()(report)
app.add_typer(slurm, name="slurm")


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


@app.command()
def check(
    config: Annotated[str, typer.Argument(help="a YAML file, or the name of a shipped one")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key.path=value")] = None,
    nemo_rl: Annotated[
        str, typer.Option(help="v0.7.0 | main; default: the file's header line, or both")
    ] = "",
    time: Annotated[str, typer.Option(help="limit of the job, as sbatch reads it")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="findings for scripts")] = False,
) -> None:
    """Find what is wrong with a run before it starts, without a GPU; exit 1 where it would fail."""
    from nemo_algos.preflight.check import check as checked
    from nemo_algos.preflight.check import versions
    from nemo_algos.slurm.batch import seconds

    try:
        limit = seconds(time) if time else None
        named = (nemo_rl,) if nemo_rl else versions(config)
        per_version = {v: checked(config, overrides or [], v, limit) for v in named}
    except ValueError as error:
        typer.echo(error, err=True)
        raise typer.Exit(2) from None
    findings = {f: [v for v in named if f in per_version[v]] for v in named for f in per_version[v]}
    if as_json:
        typer.echo(json.dumps([{**f._asdict(), "nemo_rl": v} for f, v in findings.items()]))
    else:
        _show(findings, len(named))
    raise typer.Exit(1 if any(f.severity == "error" for f in findings) else 0)


def _show(findings: dict[Finding, list[str]], versions: int) -> None:
    """A line each, with the versions where they are not all, and a count."""
    colors = {"error": "red", "warning": "yellow", "note": "dim"}
    for f, of in sorted(findings.items(), key=lambda item: list(colors).index(item[0].severity)):
        line = Text(f"{f.severity:8}", style=colors[f.severity])
        line.append(f"{f.path}: " if f.path else "", style="bold")
        line.append(f.message, style="default")
        line.append("" if len(of) == versions else f" (NeMo-RL {', '.join(of)})", style="dim")
        console.print(line, soft_wrap=True)
    counts = Counter(f.severity for f in findings)
    console.print(", ".join(f"{severity}s: {counts[severity]}" for severity in colors))


def main() -> None:
    """Entry point."""
    app()
