"""The expected update of every method in small worlds: a table, and a card for each method.

    uv run benchmarks/atlas/run.py runs/atlas --method grpo --method etr
    uv run benchmarks/atlas/run.py docs/atlas --table benchmarks/atlas/atlas.csv

What the table has is not computed again.
"""

from pathlib import Path
from typing import Annotated

import cards
import table
import typer
from cells import ARMS
from rich.progress import track

from nemo_algos import build
from nemo_algos.cli import exit_on_error
from nemo_algos.jsonl import lock_folder, refuse_links_out
from nemo_algos.processes import fresh
from nemo_algos.terminal import Console


def main(
    folder: Annotated[Path, typer.Argument(help="for the cards")] = Path("runs/atlas"),
    method: Annotated[list[str] | None, typer.Option(help="only this one; repeatable")] = None,
    file: Annotated[Path | None, typer.Option("--table", help="default: FOLDER/atlas.csv")] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes, of one thread each")] = 1,
) -> None:
    """Compute what the table lacks, and draw the cards."""
    arms = method or list(ARMS)
    path = file or folder / "atlas.csv"
    console = Console(highlight=False)
    with exit_on_error():
        for arm in arms:
            build(table.block(arm))
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links_out(folder)
        with lock_folder(path.parent, "writing to"):
            left = table.missing(arms, table.read(path))
            with fresh(workers) as processes:
                try:
                    computed = table.go(left, path, processes)
                    for _ in track(computed, "cells", len(left), console=console):
                        pass
                finally:
                    processes.shutdown(cancel_futures=True)
            rows = table.read(path)
            table.in_order(rows, path)
    for arm in arms:
        cards.draw(arm, rows, folder)
    cards.draw_all(arms, rows, folder)
    console.print(f"{len(arms)} methods: {path}, and a card each in {folder}", soft_wrap=True)


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)
