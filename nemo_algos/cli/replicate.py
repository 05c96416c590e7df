"""The command `nemo-algos replicate`."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from nemo_algos.cli.arguments import show
from nemo_algos.config import require
from nemo_algos.lab.replicate import manifest as manifests
from nemo_algos.lab.replicate.manifest import Item, Paper
from nemo_algos.preflight.slurm import submission
from nemo_algos.preflight.slurm.batch import Job
from nemo_algos.terminal import Console, echo

if TYPE_CHECKING:
    from nemo_algos.lab.replicate.plan import Costs

OUT, BESIDE = Path("runs/replicate"), "report"


def replicate(
    paper: Annotated[str, typer.Argument(help="etr, quatro, erpo or apmpo")] = "",
    item: Annotated[str, typer.Argument(help="a table or figure, such as table1")] = "",
    report: Annotated[
        list[Path] | None, typer.Option(help="folder with PAPER/MODEL/METHOD runs; may be repeated")
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="submit the runs as Slurm jobs")] = False,
    toy: Annotated[bool, typer.Option("--toy", help="train tiny runs on this machine")] = False,
    out: Annotated[
        Path, typer.Option(help="folder of the runs; pages go to its subfolder report")
    ] = OUT,
    price: Annotated[float | None, typer.Option(min=0, help="price of a GPU-hour")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="steps of a toy run")] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes that train the toy runs")] = 2,
    account: Annotated[str, typer.Option(envvar="SBATCH_ACCOUNT")] = "",
    image: Annotated[
        str, typer.Option(envvar="CONTAINER", help="container image or .sqsh file")
    ] = "",
    checkout: Annotated[Path, typer.Option(envvar="NEMO_RL", help="NeMo-RL checkout")] = Path(
        "nemo-rl"
    ),
    partition: Annotated[str, typer.Option(envvar="SBATCH_PARTITION")] = "",
    time: Annotated[
        str, typer.Option(help="time limit of one job, in sbatch's format")
    ] = "4:00:00",
    mounts: Annotated[
        list[str] | None, typer.Option(help="mount HOST:CONTAINER; may be repeated")
    ] = None,
) -> None:
    """List the four papers' tables and figures, plan their runs, and make them again."""
    require("lab")
    if (submit and (toy or report)) or (toy and report):
        raise ValueError("--submit, --report and --toy exclude each other. Give one of them.")
    papers = {name: manifests.paper(name) for name in ([paper] if paper else manifests.names())}
    chosen = {name: manifests.choose(known, item) for name, known in papers.items()}
    if submit and not item:
        raise ValueError("--submit needs a paper and an item, such as: etr table1")
    for name, known in papers.items():
        if toy:
            _toy(name, known, item, out, steps, workers)
        elif report:
            _report(name, known, chosen[name], report, out / BESIDE / name)
        elif submit:
            image = str(Path(image).resolve()) if Path(image).is_file() else image
            more = {"partition": partition, "mounts": tuple(mounts or ())}
            job = Job(account, image, checkout.resolve(), time, **more)
            _submit(name, known, chosen[name], out, job)
        elif item:
            _plan(name, known, item, out, price)
        else:
            _list(name, known)


def _list(name: str, known: Paper) -> None:
    table = Table("", "", "", box=None, show_header=False, title=f"{name}: {known.title}")
    for item, about in known.items.items():
        table.add_row(item, about.title, known.state(about))
    Console(highlight=False).print(table)


def _plan(name: str, known: Paper, item: str, out: Path, price: float | None) -> None:
    from nemo_algos.lab.replicate import commands, plan

    about = known.items[item]
    echo(f"{name} {item}: {about.title} ({known.state(about)})")
    if about.note and about.kind != "text":
        echo(f"note: {about.note}")
    if runs := plan.trained_runs(known, about):
        costs = plan.Costs(known, price)
        _costs(known, runs, costs)
        hours, disk = plan.total(known, costs, about)
        paid = f", which cost {hours * price:,.0f}" if price is not None else ""
        space = f"{disk / 1e9:,.0f} GB of checkpoints" if disk else "checkpoints of adapters"
        echo(f"total: {hours:,.0f} GPU-hours{paid}; {space}; ranges: nemo-algos plan RECIPE")
        for data, where in known.training_data(about).items():
            facts = [f"{where.rows:,} rows" if where.rows else "", where.source]
            facts += [f"sha256 {where.sha256}" if where.sha256 else ""]
            echo(f"data {data}: {'; '.join(fact for fact in facts if fact)}")
    for topic, theirs, ours in known.settings_of(item):
        echo(f"differs: {topic} (the paper: {theirs}; here: {ours})")
    for line in commands.commands(known, name, about, out):
        echo(f"$ {line}")
    if known.seeds > 1 and any(map(known.trains, about.needed_runs())):
        echo(f"seeds 2 to {known.seeds}: the same lines with `grpo.seed=N` and -seedN")
    for misprint in (m for m in known.misprints if m.item == item):
        echo(f"misprint: {misprint.says}")
    if about.kind != "text":
        echo(f"then: nemo-algos replicate {name} {item} --report {out}")


def _costs(known: Paper, runs: list[str], costs: "Costs") -> None:
    """A line for each recipe with its keys: methods cost the same."""
    paid = ("price",) if costs.price is not None else ()
    headings = ("runs", "GPUs of a run", "steps", "hours", "GPU-hours of all", *paid)
    recipes = Column("recipe", overflow="fold")  # names that differ only at their ends
    table, alike = Table(recipes, *headings), dict[str, list[str]]()
    for run in runs:
        alike.setdefault(costs.same(run), []).append(run)
    for recipe, same in alike.items():
        cost, count = costs.of(same[0]), len(same) * known.seeds
        gpus = f"{cost.gpus} {known.gpu}{'' if cost.fits else ', does not fit'}"
        steps = f"{cost.steps}{'' if cost.stated else ', not stated'}"
        money = [f"{cost.price * count:,.0f}"] if cost.price is not None else []
        spent = f"{cost.hours:,.0f}", f"{cost.gpu_hours * count:,.0f}"
        table.add_row(recipe, str(count), gpus, steps, *spent, *money)
    Console(highlight=False).print(table)


def _toy(name: str, known: Paper, item: str, out: Path, steps: int | None, workers: int) -> None:
    from nemo_algos.lab.replicate import toy

    small = toy.toy(known, steps)
    without = [i for i in ([item] if item else known.items) if i not in small.items]
    if item and without:
        reason = known.items[item].note
        raise ValueError(f"{name} {item} has no toy form: {reason}. Choose another item.")
    items = manifests.choose(small, item)
    for line in toy.make(small, items.values(), out, workers):
        echo(line)
    if without:
        echo(f"{name}: these items have no toy form: {', '.join(without)}")
    _report(name, small, items, [out], out / "toy-report" / name, toy.PAPER)


def _report(
    name: str, known: Paper, items: dict[str, Item], folders: list[Path], out: Path, of: str = ""
) -> None:
    from nemo_algos.lab.replicate.report import summary, write  # matplotlib

    if absent := [folder for folder in folders if not folder.is_dir()]:
        raise ValueError(
            f"--report {absent[0]} is not a folder. Name the parent of {name}/MODEL/METHOD."
        )
    table = Table("item", "cells", "ours", "within", "above", "below", "figures", "missing")
    for one in write(known, of or name, items, folders, out):
        table.add_row(one.name, *(str(n) for n in summary(one).values()))
    Console(highlight=False).print(table)
    echo(f"page {out / 'index.html'}")


def _submit(name: str, known: Paper, items: dict[str, Item], out: Path, job: Job) -> None:
    from nemo_algos.lab.replicate import submit

    order = submit.Order(known, name, list(items.values()), job, out)
    runs = order.runs()
    waiting = list(order.evaluations(runs))
    every = [run for each in runs.values() for run in each]
    for sentence in order.unserved_runs():
        echo(sentence, err=True)
    show([f for run in every for f in run.findings if f.severity != "error"], err=True)
    if shutil.which("sbatch"):
        for answer in submit.submit(runs, waiting):
            echo(answer)
        return
    echo("sbatch is not on PATH. The scripts are written; submit them with these lines:", err=True)
    for i, run in enumerate(every):
        submission.write(run)
        echo(f"job{i}=$(sbatch --parsable {run.folder}/job.sh)")
    for one, after in waiting:
        waits = f"--dependency=afterok:$job{every.index(after)} " if after else ""
        echo(f"sbatch {waits}{submit.write(one)}")
