"""The command `nemo-algos mismatch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from nemo_algos.config import require
from nemo_algos.terminal import Console, echo

if TYPE_CHECKING:
    from nemo_algos.lab.mismatch.verdict import Diagnosis


def mismatch(
    files: Annotated[
        list[Path], typer.Argument(help=".npz, .jsonl or .pt; NeMo-RL's train_data_step*.jsonl")
    ],
    html: Annotated[Path | None, typer.Option(help="write a page with the pictures")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="numbers for scripts")] = False,
) -> None:
    """Why sampler and trainer differ on the same tokens: the likely cause, evidence, next step."""
    require("lab")
    from nemo_algos.engines.mismatch.dump import read  # scipy
    from nemo_algos.lab.mismatch.verdict import diagnose

    verdict = diagnose([read(path) for path in files])
    if html:
        from nemo_algos.lab.mismatch.page import write

        write(html, verdict, [path.name for path in files])
    if as_json:
        echo(json.dumps(verdict.numbers(), indent=2))
        return
    _show(verdict)


def _show(verdict: Diagnosis) -> None:
    console, numbers = Console(highlight=False), verdict.numbers()
    counted = f"{numbers['tokens']:,} tokens of {numbers['responses']:,} responses"
    counted += f" ({lost:,} more are not finite)" if (lost := numbers["not_finite"]) else ""
    console.print(f"[bold]{verdict.cause.title}[/bold]: {escape(verdict.found)}", soft_wrap=True)
    console.print(f"{counted}, mean |d| {numbers['mean']:.2g}, largest {numbers['max']:.2g} nats")
    if verdict.tests:
        table = Table("cause", "effect", "p", "found", "")
        for name, test in verdict.tests.items():
            mark = (
                "[bold]named"
                if name == verdict.name
                else "fits too"
                if name in verdict.others
                else ""
            )
            row = (f"{test.effect:.3g}", f"{test.p:.1g}", escape(test.found))
            table.add_row(name, *row, mark)
        console.print(table)
    if verdict.cause.next_step:
        console.print(f"next: {escape(verdict.cause.next_step)}", soft_wrap=True)
