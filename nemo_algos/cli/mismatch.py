"""The command `nemo-algos mismatch`."""

import json
from pathlib import Path
from typing import Annotated

import typer


def mismatch(
    files: Annotated[
        list[Path], typer.Argument(help=".npz, .jsonl or .pt; NeMo-RL's train_data_step*.jsonl")
    ],
    html: Annotated[Path | None, typer.Option(help="write a page with the pictures")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="numbers for scripts")] = False,
) -> None:
    """Why sampler and trainer disagree on the same tokens: the likely cause, evidence, next step."""
    from nemo_algos.mismatch.dump import read  # scipy
    from nemo_algos.mismatch.verdict import diagnose

    verdict = diagnose([read(path) for path in files])
    if html:
        from nemo_algos.mismatch.page import write

        write(html, verdict, [path.name for path in files])
    if as_json:
        typer.echo(json.dumps(verdict.numbers(), indent=2))
        return
    numbers = verdict.numbers()
    typer.secho(verdict.title, bold=True)
    typer.echo(f"  {verdict.found}")
    counted = f"{numbers['tokens']:,} tokens of {numbers['responses']:,} responses"
    typer.echo(f"  {counted}, mean |d| {numbers['mean']:.2g} nats, largest {numbers['max']:.2g}")
    for row in numbers["evidence"]:
        chance = "below 1e-300" if row["p"] == 0 else f"{row['p']:.1g}"
        typer.echo(f"  {row['cause']:12} effect {row['effect']:7.3f}  p {chance}  {row['found']}")
    if verdict.next_step:
        typer.echo(f"next: {verdict.next_step}")
