"""Run a study: methods x seeds x regimes on the embedded engine. A stopped one goes on.

    uv run benchmarks/study/run.py benchmarks/study/configs/quick.yaml out=runs/study

The runs are rows of OUT/NAME/results.csv; report.py makes tables and figures of that folder.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import design
import runner
import tuning
import typer
from rich.progress import MofNCompleteColumn, Progress

from nemo_algos.cli import exit_on_error
from nemo_algos.jsonl import lock_folder, refuse_links_out
from nemo_algos.processes import fresh
from nemo_algos.terminal import Console


def main(
    config: Path,
    overrides: Annotated[list[str] | None, typer.Argument(help="key.path=value")] = None,
    verify: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="make this share of the runs again, and compare"),
    ] = None,
) -> None:
    """Run what the folder of results lacks; with --verify, exit with 1 if a run differs."""
    with exit_on_error():
        study, console = design.load(config, overrides or []), Console(highlight=False)
        design.runs(study)
        design.runs(tuning.sweeps(study))
        folder = Path(study.out) / config.stem
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links_out(folder)
        with lock_folder(folder, "writing to"):
            study = tuning.tune(study, lambda part: train(part, folder, console))
            train(study, folder, console)
            design.keep(study, folder)
            if verify is not None and not same_again(study, folder, verify, console):
                raise typer.Exit(1)


def train(study: design.Study, folder: Path, console: Console) -> dict[str, runner.Row]:
    """The rows of a study's runs by id, after those that were missing have been trained."""
    runs = design.runs(study)[0]
    finished = runner.results(folder / "results.csv")
    done = sum(run.id in finished for run in runs)
    console.print(f"{len(runs)} runs, {done} already done; results in {folder}", soft_wrap=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("runs", total=len(runs), completed=done)
        # at Ctrl-C what a worker runs is lost, and what waits is not begun
        with fresh(study.workers) as processes:
            try:
                for _ in runner.go(runs, folder, processes, study.path):
                    done += 1
                    progress.advance(task)
                    if not console.is_terminal:
                        console.print(f"{time.strftime('%H:%M:%S')}  {done} of {len(runs)} runs")
            finally:
                processes.shutdown(cancel_futures=True)
    return runner.results(folder / "results.csv")


def same_again(study: design.Study, folder: Path, share: float, console: Console) -> bool:
    """Whether a share of the runs has the same numbers when it is made again."""
    same = True
    with TemporaryDirectory() as again, fresh(study.workers) as processes:
        runs = design.runs(study)[0]
        for run, differing in runner.verify(runs, folder, share, Path(again), processes):
            same = same and not differing
            columns = (f"{name}: {was}, now {now}" for name, (was, now) in differing.items())
            console.print(f"{run}  {'; '.join(columns) or 'the same numbers'}", soft_wrap=True)
    return same


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)
