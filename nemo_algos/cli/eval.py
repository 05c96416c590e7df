"""The command `nemo-algos eval`; examples/run_eval.py is the same."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from nemo_algos import config as configs
from nemo_algos.config import ConfigError


def evaluate(
    config: Annotated[
        str, typer.Argument(help="a YAML file, or a shipped one: eval/countdown.yaml")
    ],
    overrides: Annotated[list[str] | None, typer.Argument(help="key.path=value")] = None,
) -> None:
    """Sample responses to benchmarks, verify them, measure; what is stored is not done again."""
    console = Console(highlight=False)
    try:
        run(config, overrides or [], console)
    except ConfigError as error:
        for problem in error.findings:
            typer.echo(problem, err=True)
        raise typer.Exit(2) from None
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("stopped; what came back is stored: the same command goes on", err=True)
        raise typer.Exit(130) from None


def run(config: str, overrides: list[str], console: Console) -> None:
    """Check the config, evaluate, say where things are."""
    from nemo_algos.evals.schema import checked

    written = configs.load(configs.find(config), overrides)
    ready = checked(written)
    from nemo_algos.evals.run import evaluate as evaluated

    folders = evaluated(ready, console)
    # a run's own folder has its training too
    own = ready.out is None and ready.folder.name == "eval"
    shown = ready.folder.parent if own else ready.folder
    console.print("\n".join(f"stored in {f}" for f in folders), soft_wrap=True)
    console.print(f"report     uv run nemo-algos report {shown}", soft_wrap=True)
