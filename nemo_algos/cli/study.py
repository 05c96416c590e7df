"""The command `nemo-algos study`; examples/run_study.py is the same."""

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table

from nemo_algos.cli.arguments import Config, Overrides, load_config
from nemo_algos.config import require
from nemo_algos.jsonl import lock_folder, refuse_links_out
from nemo_algos.processes import fresh
from nemo_algos.terminal import Console

if TYPE_CHECKING:
    from nemo_algos.lab.study.design import Study, StudyCell
    from nemo_algos.lab.study.runner import Row
    from nemo_algos.lab.study.summary import ArmResult

STARRED = "*: the 95 % CI of the difference excludes 0; intervals and figures are in"


def study(
    config: Config,
    overrides: Overrides = None,
    verify: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, metavar="SHARE", help="make this share of the runs again, and compare"
        ),
    ] = None,
) -> None:
    """Run methods x seeds x regimes on the embedded engine, and say what they show."""
    require("lab")
    load_config(config, [], "study")
    from nemo_algos.lab.study import design, records, tuning  # what they load takes seconds
    from nemo_algos.lab.study.runner import results

    plan, console = design.load(config, overrides or []), Console(highlight=False)
    design.runs(plan)
    design.runs(tuning.sweeps(plan))
    folder = design.folder(plan, config)
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links_out(folder)

    def go(part: "Study") -> dict[str, "Row"]:
        _go(part, folder, console)
        return results(folder / "results.csv")

    with lock_folder(folder, "writing to"):
        plan = tuning.tune(records.join(plan, folder), go)
        go(plan)
        _show(plan, design.runs(plan)[1], folder, console)
        if verify is not None:
            _verify(plan, folder, verify, console)


def _verify(plan: "Study", folder: Path, share: float, console: Console) -> None:
    """Exits with 1 where a run that is made again has other numbers."""
    from nemo_algos.lab.study import design, records

    differing = 0
    with TemporaryDirectory() as again, fresh(plan.workers) as processes:
        runs = design.runs(plan)[0]
        for run, columns in records.verify(runs, folder, share, Path(again), processes):
            differing += bool(columns)
            found = "; ".join(f"{n}: {was}, now {now}" for n, (was, now) in columns.items())
            console.print(f"{run}  {found or 'the same numbers'}", soft_wrap=True)
    if differing:
        what = f"{differing} runs have other numbers than {folder / 'results.csv'}"
        console.print(what, soft_wrap=True)
        raise typer.Exit(1)


def _go(part: "Study", folder: Path, console: Console) -> None:
    from nemo_algos.lab.study.design import runs as of
    from nemo_algos.lab.study.runner import go, results

    runs, there = of(part)[0], results(folder / "results.csv")
    done = sum(r.id in there for r in runs)
    console.print(f"{len(runs)} runs, {done} already done; results in {folder}", soft_wrap=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("runs", total=len(runs), completed=done)
        # at Ctrl-C what a worker runs is lost, and what waits is not begun
        with fresh(part.workers) as processes:
            try:
                for i, _ in enumerate(go(runs, folder, processes, part.path), done + 1):
                    progress.advance(task)
                    if not console.is_terminal:
                        console.print(f"{time.strftime('%H:%M:%S')}  {i} of {len(runs)} runs done")
            finally:
                processes.shutdown(cancel_futures=True)


def _show(plan: "Study", cells: Sequence["StudyCell"], folder: Path, console: Console) -> None:
    from nemo_algos.lab.study import report  # numpy, scipy and torch, after the design is checked
    from nemo_algos.lab.study.figures import SHOWN

    found = report.show(plan, cells, folder.name, folder)
    for name, regime in plan.regimes.items():
        table = Table("arm", "n", *SHOWN, title=f"{name} (difference from {regime.baseline})")
        for arm in regime.arms:
            cell = {r.metric: r for r in found if (r.regime, r.arm) == (name, arm)}
            if cell:
                numbers = (_cell(cell.get(metric)) for metric in SHOWN)
                table.add_row(arm, str(cell["pass@1"].value.n), *numbers)
        console.print(table)
    console.print(f"{STARRED} {folder / 'report.md'}", soft_wrap=True)


def _cell(result: "ArmResult | None") -> str:
    """The mean and its difference to the baseline, starred where that is resolved."""
    if result is None:
        return "-"
    mark = "*" if result.difference.resolved else ""
    return f"{result.value.mean:.3f} {result.difference.mean:+.3f}{mark}"
