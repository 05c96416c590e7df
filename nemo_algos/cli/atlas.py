"""The command `nemo-algos atlas`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from nemo_algos.jsonl import lock_folder, refuse_links_out
from nemo_algos.processes import fresh
from nemo_algos.terminal import Console

Folder = Annotated[Path, typer.Argument(help="The folder for the table and the cards.")]
Methods = Annotated[
    list[str] | None, typer.Option(help="Compute only this method. May be repeated.")
]


def atlas(
    folder: Folder = Path("runs/atlas"),
    method: Methods = None,
    workers: Annotated[int, typer.Option(min=1, help="processes, of one thread each")] = 1,
) -> None:
    """Compute the expected update of every method in small worlds: a table, and a card each."""
    from nemo_algos.algorithms.build import build
    from nemo_algos.lab.atlas import cards, run
    from nemo_algos.lab.atlas.design import ARMS

    arms, path = method or list(ARMS), folder / "atlas.csv"
    for arm in arms:
        build(run.block(arm))
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links_out(folder)
    console = Console(highlight=False)
    with lock_folder(folder, "writing to"):
        left = run.missing(arms, run.read(path))
        with fresh(workers) as processes:
            try:
                for _ in track(run.go(left, path, processes), "cells", len(left), console=console):
                    pass
            finally:
                processes.shutdown(cancel_futures=True)
        table = run.read(path)
        run.in_order(table, path)
    for arm in arms:
        cards.draw(arm, table, folder)
    cards.draw_all(arms, table, folder)
    console.print(f"{len(arms)} methods: {path}, and a card each", soft_wrap=True)
