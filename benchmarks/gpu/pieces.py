"""What only a GPU shows, in pieces that each fit a given time.

    python benchmarks/gpu/pieces.py PIECE --out FOLDER [--seconds N] [--cpu]
    python benchmarks/gpu/pieces.py table FOLDER

Each leaves FOLDER/PIECE.json. README.md beside this file says what each needs, and their order.
"""

from pathlib import Path
from typing import Annotated

import typer
from piece import Piece, measured, table

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False)


def fp8(piece: Piece) -> None:
    """ETR under Megatron in e4m3 blocks with FP8 rollouts, 4 steps."""
    from nemo_run import Run

    Run(piece, "fp8", "fp8", "grpo.max_num_steps=4").run()


def bf16(piece: Piece) -> None:
    """The same in bf16, packed; killed after a checkpoint, and resumed."""
    from nemo_run import Run

    saves = ("checkpointing.enabled=true", "checkpointing.save_period=2")
    words = (*saves, "checkpointing.checkpoint_dir=results", "grpo.max_num_steps=4")
    Run(piece, "bf16", "bf16", *words).run(kill_at="results/step_2")


PIECES = {f.__name__: f for f in (fp8, bf16)}


@app.command("table")
def print_table(folder: Path) -> None:
    """Print the figures of a folder as Markdown tables."""
    print("\n".join(table(folder)))


def command(name: str) -> None:
    """Make a piece a command."""

    def run(
        out: Annotated[Path, typer.Option(help="a folder with a short name")],
        seconds: Annotated[int, typer.Option(help="it is ended after so many")] = 280,
        cpu: Annotated[bool, typer.Option("--cpu", help="in miniature, without a GPU")] = False,
    ) -> None:
        piece = Piece(name, out.resolve(), seconds, cpu)
        try:
            with measured(piece):
                PIECES[name](piece)
        except (ValueError, TimeoutError) as error:
            raise SystemExit(f"{name}: {error}") from error

    run.__doc__ = PIECES[name].__doc__
    app.command(name)(run)


for each in PIECES:
    command(each)

if __name__ == "__main__":
    app()
