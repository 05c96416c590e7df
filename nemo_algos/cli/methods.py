"""The command `nemo-algos methods`."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding

from nemo_algos.methods import METHODS
from nemo_algos.methods.method import Method
from nemo_algos.methods.terms import TERMS, LossTerm


def methods(as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False) -> None:
    """List the methods: ratio, bounds, mean, what they need, paper and defaults; then the terms."""
    rows = [*map(facts, METHODS.values()), *map(facts_of_term, TERMS.values())]
    if as_json:
        return typer.echo(json.dumps(rows, indent=2))
    console = Console(highlight=False)
    for row in rows:
        name = row.pop("method", None) or f"terms.{row.pop('term')}"
        paper, defaults = (row.pop(key) for key in ("paper", "defaults"))
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
        "needs": sorted(method.needs | method.params().needs),
        "defaults": defaults,
    }


def facts_of_term(term: LossTerm) -> dict[str, Any]:
    """What a term of the loss adds and needs."""
    defaults = {k: v for k, v in term.params().model_dump().items() if v is not None}
    return {
        "term": term.name,
        "paper": term.paper,
        "adds": (term.values.__doc__ or "").splitlines()[0],
        "needs": sorted(term.needs),
        "defaults": defaults,
    }
