"""The command `nemo-algos report`."""

from pathlib import Path
from typing import Annotated

import typer

from nemo_algos.extras import require
from nemo_algos.terminal import Console, echo


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="folders of training runs (TRL's too) and evaluations; verl's logs"
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="of the page and its figures")] = Path(
        "runs/report"
    ),
) -> None:
    """Compare runs in one HTML file that opens offline; each figure also as PNG and CSV."""
    require("lab")
    console = Console(stderr=True, highlight=False)
    with console.status("loading what draws", spinner="line") as status:
        from nemo_algos.lab.report.page import write  # scipy

        status.update("reading the runs and drawing their figures")
        path = write(runs, out)
    echo(f"report   {path} ({path.stat().st_size / 1e6:.1f} MB)")
    echo(f"figures  {out / 'figures'}")
