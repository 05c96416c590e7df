"""What only a GPU shows, in pieces that each fit a given time.

    python benchmarks/gpu/pieces.py PIECE --out FOLDER [--seconds N] [--cpu]
    python benchmarks/gpu/pieces.py table FOLDER

Each leaves FOLDER/PIECE.json, also where its time was over. README.md beside this file says what
each needs, and their order.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import layers
import options
import programs
import quantisers
import trainings
import typer
from piece import Piece, measured, table

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False)
PIECES: dict[str, Callable[[Piece], None]] = {
    "imports": programs.imports,
    "fp8": trainings.fp8,
    "bf16": trainings.bf16,
    "tests": programs.tests,
    "quantisers": quantisers.compare,
    "te": layers.compare,
    "large": trainings.large,
    "methods": trainings.methods,
    "same": trainings.compare,
    "memory": trainings.memory,
    "kernels": programs.kernels,
    "gemm": programs.gemm,
    "engine": programs.engine,
    "trl": programs.trl,
    "overhead": trainings.overhead,
    "sampler": options.sampler,
    "stop": options.stop,
    "lora": options.lora,
    "mxfp8": options.mxfp8,
    "learn": trainings.learn,
}
ANYWHERE = ("same", "memory")  # need no GPU
NOT_IN_MINIATURE = ("quantisers", "te", "tests")


@app.command("table")
def print_table(folder: Path) -> None:
    """Print the figures of a folder as Markdown tables."""
    print("\n".join(table(folder)))


def command(name: str, take: Callable[[Piece], None]) -> None:
    """Make a piece a command."""

    def run(
        out: Annotated[Path, typer.Option(help="a folder with a short name")],
        seconds: Annotated[int, typer.Option(help="it is ended after so many")] = 280,
        cpu: Annotated[bool, typer.Option("--cpu", help="in miniature, without a GPU")] = False,
    ) -> None:
        piece = Piece(name, out.resolve(), seconds, on_cpu=cpu)
        try:
            needs_gpu = name in NOT_IN_MINIATURE or not (cpu or name in ANYWHERE)
            with measured(piece, needs_gpu):
                take(piece)
        except (ValueError, TimeoutError) as error:
            raise SystemExit(f"{name}: {error}") from error

    run.__doc__ = take.__doc__
    app.command(name)(run)


for each in PIECES:
    command(each, PIECES[each])

if __name__ == "__main__":
    app()
