"""The command `nemo-algos atlas`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn, Progress

from nemo_algos.config import require
from nemo_algos.jsonl import lock_folder, refuse_links_out
from nemo_algos.processes import fresh
from nemo_algos.terminal import Console


def atlas(
    folder: Annotated[Path, typer.Argument(help="where the table and cards go")] = Path(
        "runs/atlas"
    ),
    method: Annotated[
        list[str] | None, typer.Option(help="of this one alone; may be repeated")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes, of one thread each")] = 1,
) -> None:
    """Compute every method's exact expected update in small worlds: a table, and a card each."""
    require("lab")
    from nemo_algos import build
    from nemo_algos.lab.atlas import cards, run
    from nemo_algos.lab.atlas.design import ARMS

    arms = method or list(ARMS)
    for arm in arms:
        build(run.block(arm))
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links_out(folder)
    console = Console(highlight=False)
    with lock_folder(folder, "writing to"), fresh(workers) as processes:
        columns = (*Progress.get_default_columns(), MofNCompleteColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            steps = run.go(arms, folder, processes)
            task = progress.add_task("cells", total=next(steps))
            try:
                for _ in steps:
                    progress.advance(task)
            finally:
                processes.shutdown(cancel_futures=True)
        run.write(run.rows(arms, folder), folder)
        table = run.read(folder / run.TABLE)
        for arm in arms:
            cards.draw(arm, table, folder)
    console.print(f"{len(arms)} methods: {folder / run.TABLE}, and a card each", soft_wrap=True)
