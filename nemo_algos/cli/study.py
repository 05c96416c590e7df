"""The command of examples/run_study.py."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table

from nemo_algos.study.figures import SHOWN

if TYPE_CHECKING:
    from nemo_algos.study.design import Cell, Run, Study
    from nemo_algos.study.summary import Result


def study(
    config: Annotated[str, typer.Argument(help="a YAML file, or a shipped one: study/full.yaml")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key.path=value")] = None,
) -> None:
    """Run methods x seeds x regimes on the embedded engine, and say what they show."""
    try:
        _study(config, overrides or [], Console(highlight=False))
    except (ValueError, OSError, BrokenProcessPool) as error:
        typer.echo(error, err=True)
        raise typer.Exit(2) from None


def _study(config: str, overrides: list[str], console: Console) -> None:
    from nemo_algos.study import design, tuning
    from nemo_algos.study.runner import results

    plan = design.load(config, overrides)
    design.runs(plan)
    runs, cells = design.runs(tuning.sweeps(plan))
    folder = design.folder(plan, config)
    if runs:
        _go(runs, folder, plan.workers, console)
        plan = tuning.chosen(plan, cells, results(folder / "results.csv"))
    runs, cells = design.runs(plan)
    _go(runs, folder, plan.workers, console)
    _show(plan, cells, folder, console)


def _go(runs: Sequence[Run], folder: Path, workers: int, console: Console) -> None:
    from nemo_algos.study.runner import go, results

    there = results(folder / "results.csv")
    done = sum(r.id in there for r in runs)
    console.print(f"{len(runs)} runs, {done} of them done; results in {folder}", soft_wrap=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("runs", total=len(runs), completed=done)
        # a worker ends at Ctrl-C: what it runs is lost, and what waits is not begun
        at_interrupt = (signal.SIGINT, signal.SIG_DFL)
        with ProcessPoolExecutor(
            workers, get_context("spawn"), signal.signal, at_interrupt
        ) as processes:
            try:
                for _ in go(runs, folder, processes):
                    progress.advance(task)
            finally:
                processes.shutdown(cancel_futures=True)


def _show(plan: Study, cells: Sequence[Cell], folder: Path, console: Console) -> None:
    from nemo_algos.study import report

    found = report.show(plan, cells, folder.name, folder)
    for name, regime in plan.regimes.items():
        table = Table("arm", "n", *SHOWN, title=f"{name} (difference to {regime.baseline})")
        for arm in regime.arms:
            of = {r.metric: r for r in found if (r.regime, r.arm) == (name, arm)}
            if of:
                table.add_row(arm, str(of["pass@1"].value.n), *(_cell(of.get(m)) for m in SHOWN))
        console.print(table)


def _cell(result: Result | None) -> str:
    """The mean and its difference to the baseline, starred where that is resolved."""
    if result is None:
        return "-"
    mark = "*" if result.difference.resolved else ""
    return f"{result.value.mean:.3f} {result.difference.mean:+.3f}{mark}"
