"""The command `nemo-algos methods`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from nemo_algos.algorithms.build import build, find
from nemo_algos.algorithms.extensions.terms import TERMS, LossTerm
from nemo_algos.algorithms.kernel import Method
from nemo_algos.algorithms.methods import FAMILIES, METHODS
from nemo_algos.config import shipped_method
from nemo_algos.findings import did_you_mean
from nemo_algos.terminal import Console, echo


def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="METHOD", help="show this one with its defaults")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    golden: Annotated[
        Path | None,
        typer.Option(
            "--verify",
            metavar="FILE",
            help="compare the methods with this golden file; exit 1 where they differ",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(metavar="ERROR", help="of --verify; default: the tolerance in the file"),
    ] = None,
) -> None:
    """List the methods and terms with their papers, show one, or verify their numbers."""
    if tolerance is not None and golden is None:
        raise ValueError("--tolerance is of --verify, which is not given. Add --verify FILE.")
    if golden is not None:
        return _verify(golden, tolerance)
    terms = [facts_of_term(term) for term in TERMS.values()]
    asked = [*map(facts, METHODS.values()), *terms] if name is None else [_find(name)]
    if as_json:
        return echo(json.dumps(asked, indent=2))
    console = Console(highlight=False)
    if name is not None:
        return details(console, asked[0])
    for family, names in FAMILIES.items():
        _list(console, family, [(member, METHODS[member].paper) for member in names])
    _list(console, "terms of the loss", [(term["method"], term["paper"]) for term in terms])


def _list(console: Console, family: str, members: list[tuple[str, str]]) -> None:
    console.print(f"[bold]{family}[/bold]")
    for member, paper in members:
        console.print(f"  {member:<23}{paper}", markup=False)


def _verify(file: Path, tolerance: float | None) -> None:
    """Compare with a golden file of float64 numbers. Raises typer.Exit, 1 where one differs."""
    from nemo_algos.algorithms.golden.verify import errors_of, read  # torch

    cases = read(file)
    errors = []
    for case in cases["cases"]:
        errors += errors_of(case)
    limit = float(cases.get("tolerance", 1e-6)) if tolerance is None else tolerance
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
        console.print(
            f"{e.case} {e.quantity}: error {e.error:.3e} > {limit:g}", style="red", markup=False
        )
    console.print(f"{len(cases['cases'])} cases, {len(failed)} quantities above {limit:g}")
    raise typer.Exit(1 if failed else 0)


def _find(name: str) -> dict[str, Any]:
    block = None if name in METHODS else shipped_method(name)
    if block:
        return facts_of_config(name, block)
    if not name.startswith("terms."):
        return facts(find(name))
    known = {f"terms.{term}": record for term, record in TERMS.items()}
    if name not in known:
        raise ValueError(f"unknown term {name!r}{did_you_mean(name, list(known))}")
    return facts_of_term(known[name])


def facts_of_config(name: str, block: dict[str, Any]) -> dict[str, Any]:
    """What a baseline is that is a method with other parameters: dapo, clip_high."""
    algorithm = build(block)
    row = facts(algorithm.base.method)
    changed = ", ".join(f"{k}={v}" for k, v in block.items() if k != "name")
    is_ = f"{algorithm.name} with {changed}" if changed else algorithm.name
    given = {}
    for k, v in algorithm.base.params.model_dump().items():
        if v is not None:
            given[k] = v
    named = {"method": name, "is": is_, "config": f"{name}.yaml"}
    return {**named, **row, **named, "mean": algorithm.mean, "defaults": given}


def details(console: Console, row: dict[str, Any]) -> None:
    """A method's facts, in lines that break between them."""
    name, paper, defaults = (row.pop(key) for key in ("method", "paper", "defaults"))
    console.print(f"[bold]{name}[/bold]  {paper}")
    for values in (row, defaults):
        pairs = (f"{k}={v}" for k, v in values.items())
        console.print(Padding("  ".join(pairs), (0, 4), expand=False), markup=False)


def facts(method: Method) -> dict[str, Any]:
    """What a method does and needs."""
    defaults = {}
    for k, v in method.params().model_dump().items():
        if v is not None:
            defaults[k] = v
    return {
        "method": method.name,
        "paper": method.paper,
        "ratio": method.ratio if method.form == "ratio" else "none: A' log pi",
        "clips": method.clips,
        "mean": defaults.get("aggregation", method.mean),
        "needs": sorted(method.needs | method.params().needs),
        "defaults": defaults,
    }


def facts_of_term(term: LossTerm) -> dict[str, Any]:
    """What a term of the loss adds and needs."""
    defaults = {}
    for k, v in term.params().model_dump().items():
        if v is not None:
            defaults[k] = v
    return {
        "method": f"terms.{term.name}",
        "paper": term.paper,
        "adds": (term.values.__doc__ or "").splitlines()[0],
        "needs": sorted(term.needs),
        "defaults": defaults,
    }
