"""The command `nemo-algos report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="folders: training runs, evaluations, NeMo-RL logs")
    ],
    out: Annotated[Path, typer.Option(help="folder of the report")] = Path("runs/report"),
) -> None:
    """Compare runs in one HTML file that opens offline; each figure also as PNG and CSV."""
    from nemo_algos.report.page import write

    try:
        path = write(runs, out)
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    console = Console(highlight=False)
    console.print(f"report   {path} ({path.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)
    console.print(f"figures  {out / 'figures'}", soft_wrap=True)
