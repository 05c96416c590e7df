"""The command `nemo-algos configs`."""

import json
from typing import Annotated

import typer

from nemo_algos import config
from nemo_algos.cli.methods import facts_of_config
from nemo_algos.terminal import echo

WIDTH = 22  # of a name without a folder


def configs(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """List the shipped configs, a line each; `nemo-algos train etr.yaml` takes them by name."""
    lines = {}
    for name in config.names():
        if "/base/" not in name:
            lines[name] = describe(name)
    if as_json:
        return echo(json.dumps(lines, indent=2))
    for name, line in lines.items():
        echo(f"{name:{WIDTH}}  {line}")


def describe(name: str) -> str:
    """Its first comment, else the method that it trains."""
    first = (config.SHIPPED / name).read_text().partition("\n")[0]
    if first.startswith("#"):
        return first.lstrip("# ").removesuffix(", e.g.").removesuffix(":")
    block = config.shipped_method(name.removesuffix(".yaml"))
    if block:
        return f"countdown: {facts_of_config(name, block)['is']}"
    return ""
