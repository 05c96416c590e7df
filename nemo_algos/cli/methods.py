"""The command `nemo-algos methods`."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding

from nemo_algos.methods import METHODS
from nemo_algos.methods.method import Method


def methods(as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False) -> None:
    """List the methods: ratio, bounds, mean, what they need, paper and defaults."""
    rows = [facts(method) for method in METHODS.values()]
    if as_json:
        return typer.echo(json.dumps(rows, indent=2))
    console = Console(highlight=False)
    for row in rows:
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
