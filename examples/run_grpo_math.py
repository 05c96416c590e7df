"""Train with a method: `uv run examples/run_grpo_math.py --config etr.yaml [key.path=value
...]`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from nemo_algos.cli.train import launch


def main(
    overrides: Annotated[list[str] | None, typer.Argument(help="key.path=value")] = None,
    config: Annotated[str | None, typer.Option(help="a YAML file, or its name in configs/")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="continue the run in this folder, or start it there")
    ] = None,
) -> None:
    """Train a policy with one of the methods."""
    sys.exit(launch(config, overrides or [], resume))


if __name__ == "__main__":
    typer.run(main)
