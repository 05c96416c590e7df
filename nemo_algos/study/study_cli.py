"""The command of examples/run_study.py."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table

if TYPE_CHECKING:
    from nemo_algos.study.design import Cell, Run, Study
    from nemo_algos.study.summary import Result

SHOWN = ("pass@1", "pass@16", "UCC@64", "entropy")


def study(
    config: Annotated[str, typer.Argument(help="a YAML file, or a shipped one: study/full.yaml")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key.path=value")] = None,
) -> None:
    """Run methods x seeds x regimes on the embedded engine, and say what they show."""
    from nemo_algos.study import design, tuning
    from nemo_algos.study.runner import results

    console = Console(highlight=False)
    try:
        plan = design.load(config, overrides or [])
        design.runs(plan)
        runs, cells = design.runs(tuning.sweeps(plan))
    except ValueError as error:
        typer.echo(error, err=True)
        raise typer.Exit(2) from None
    folder = design.folder(plan, config)
    if runs:
        _go(runs, folder, plan.workers, console)
        plan = tuning.chosen(plan, cells, results(folder / "results.csv"))
    runs, cells = design.runs(plan)
    _go(runs, folder, plan.workers, console)
    _show(plan, cells, folder, console)


def _go(runs: Sequence[Run], folder: Path, workers: int, console: Console) -> None:
    from nemo_algos.study.runner import go, results

    done = len([r for r in runs if r.id in results(folder / "results.csv")])
    console.print(f"{len(runs)} runs, {done} of them done; results in {folder}", soft_wrap=True)
    with Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("runs", total=len(runs), completed=done)
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
            try:
                for _ in go(runs, folder, processes):
                    progress.advance(task)
            finally:
                processes.shutdown(cancel_futures=True)


def _show(plan: Study, cells: Sequence[Cell], folder: Path, console: Console) -> None:
    from nemo_algos.study import report, trust_region
    from nemo_algos.study.curves import draw_draws, draw_steps, draw_tradeoffs
    from nemo_algos.study.figures import draw
    from nemo_algos.study.runner import results
    from nemo_algos.study.summary import summarise, write

    found = summarise(plan, cells, results(folder / "results.csv"))
    write(found, folder / "summary.csv")
    draw(plan, found, folder)
    draw_draws(plan, found, folder)
    draw_tradeoffs(plan, found, folder)
    draw_steps(plan, cells, folder)
    trust_region.draw(folder / "figures" / "quatro_advantages.png")
    report.write(plan, found, f"The study {folder.name}", folder / "report.md")
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
