"""The command `nemo-algos check`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from nemo_algos.cli.arguments import Config, NemoRL, Overrides, written
from nemo_algos.config import Finding
from nemo_algos.preflight.check import check as checked
from nemo_algos.preflight.check import versions
from nemo_algos.slurm.batch import seconds

COLORS = {"error": "red", "warning": "yellow", "note": "dim"}


def check(
    config: Config,
    overrides: Overrides = None,
    nemo_rl: NemoRL = "",
    time: Annotated[str, typer.Option(help="limit of the job, as sbatch reads it")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="findings for scripts")] = False,
) -> None:
    """Find what is wrong with a run before it starts, without a GPU; exit 1 where it would fail."""
    written(config, [], "train")
    limit = seconds(time) if time else None
    named = (nemo_rl,) if nemo_rl else versions(config)
    per_version = {v: checked(config, overrides or [], v, limit) for v in named}
    findings = {f: [v for v in named if f in per_version[v]] for v in named for f in per_version[v]}
    if as_json:
        typer.echo(json.dumps([{**f._asdict(), "nemo_rl": v} for f, v in findings.items()]))
    else:
        _show(findings, len(named))
    raise typer.Exit(1 if any(f.severity == "error" for f in findings) else 0)


def _show(findings: dict[Finding, list[str]], versions: int) -> None:
    """Print a line each, with the versions where they are not all, and a count."""
    console = Console()
    for f, seen in sorted(findings.items(), key=lambda item: list(COLORS).index(item[0].severity)):
        line = Text(f"{f.severity:8}", style=COLORS[f.severity])
        line.append(f"{f.path}: " if f.path else "", style="bold")
        line.append(f.message, style="default")
        line.append("" if len(seen) == versions else f" (NeMo-RL {', '.join(seen)})", style="dim")
        console.print(line, soft_wrap=True)
    counts = Counter(f.severity for f in findings)
    console.print(", ".join(f"{severity}s: {counts[severity]}" for severity in COLORS))
