"""The command `nemo-algos methods`."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding

from nemo_algos.methods import FAMILIES, METHODS
from nemo_algos.methods.build import find
from nemo_algos.methods.method import Method


def methods(
    name: Annotated[str | None, typer.Argument(help="one of them, with its defaults")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
) -> None:
    """List the methods and their papers, or what one of them does, needs and has as defaults."""
    asked = list(METHODS.values()) if name is None else [find(name)]
    if as_json:
        return typer.echo(json.dumps([facts(method) for method in asked], indent=2))
    console = Console(highlight=False)
    if name is not None:
        return details(console, facts(asked[0]))
    for family, members in FAMILIES.items():
        console.print(f"[bold]{family}[/bold]")
        for method in members:
            console.print(f"  {method.name:<22}{method.paper}", markup=False)


def details(console: Console, row: dict[str, Any]) -> None:
    """A method's facts, in lines that break between them."""
    name, paper, defaults = (row.pop(key) for key in ("method", "paper", "defaults"))
    console.print(f"[bold]{name}[/bold]  {paper}")
    for values in (row, defaults):
        pairs = (f"{k}={v}" for k, v in values.items())
        console.print(Padding("  ".join(pairs), (0, 4), expand=False), markup=False)


def facts(method: Method) -> dict[str, Any]:
    """What a method does and needs."""
    defaults = {k: v for k, v in method.params().model_dump().items() if v is not None}
    return {
        "method": method.name,
        "paper": method.paper,
        "ratio": method.ratio if method.form == "ratio" else "none: A' log pi",
        "clips": method.clips,
        "mean": defaults.get("aggregation", method.mean),
        "needs": sorted(method.needs),
        "defaults": defaults,
    }
