"""The command `nemo-algos slurm`: a run as jobs. `slurm status|tail|stop` are in slurm.runs."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from nemo_algos.cli import Plain
from nemo_algos.cli.arguments import Config, Overrides, Words, load_config, show
from nemo_algos.config import find
from nemo_algos.findings import refuse_first
from nemo_algos.preflight.slurm import prepare, runs
from nemo_algos.preflight.slurm.batch import PROGRAM, Job
from nemo_algos.preflight.slurm.placement import Sizes
from nemo_algos.terminal import echo


class Slurm(Words):
    """Submitting is the default."""

    default = "job"


slurm = typer.Typer(
    cls=Slurm,
    add_completion=False,
    help="Submit a config as a Slurm job; status, tail and stop a run.",
)
slurm.command(cls=Plain, epilog="Example: nemo-algos slurm status")(runs.status)
slurm.command(cls=Plain, epilog="Example: nemo-algos slurm tail nemo_rl")(runs.tail)
slurm.command(cls=Plain, epilog="Example: nemo-algos slurm stop nemo_rl --save")(runs.stop)


@slurm.command(cls=Plain, epilog="For a submitted run: nemo-algos slurm status | tail | stop RUN")
def job(
    config: Config,
    overrides: Overrides = None,
    account: Annotated[
        str, typer.Option(metavar="NAME", envvar="SBATCH_ACCOUNT", help="the account to charge")
    ] = "",
    image: Annotated[
        str,
        typer.Option(metavar="IMAGE", envvar="CONTAINER", help="container image, or .sqsh file"),
    ] = "",
    checkout: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", envvar="NEMO_RL", help="NeMo-RL checkout with the image's ray.sub"
        ),
    ] = Path("nemo-rl"),
    partition: Annotated[
        str, typer.Option(metavar="NAME", envvar="SBATCH_PARTITION", help="where the job runs")
    ] = "",
    nodes: Annotated[int | None, typer.Option(metavar="N", help="sets `cluster.num_nodes`")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(metavar="N", help="sets `cluster.gpus_per_node`")
    ] = None,
    time: Annotated[
        str, typer.Option(metavar="H:M:S", help="time limit of one job, as for sbatch")
    ] = "4:00:00",
    margin: Annotated[
        int, typer.Option(metavar="MINUTES", help="before the limit to save and stop")
    ] = 15,
    max_requeues: Annotated[
        int, typer.Option(metavar="N", min=0, max=9999, help="requeue a job at most so often")
    ] = 20,
    retries: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=9999, help="retries after errors without a saved step"
        ),
    ] = 0,
    stalled: Annotated[
        int | None,
        typer.Option(
            metavar="MINUTES", min=0, help="restart after so many without a step; 0: never"
        ),
    ] = None,
    mounts: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:CONTAINER", help="folders in the container; repeatable"),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="of sbatch, such as --sbatch=--qos=high; repeatable"),
    ] = None,
    program: Annotated[
        Path | None, typer.Option(metavar="FILE", help="run this instead of run_grpo_math.py")
    ] = None,
    out: Annotated[str, typer.Option(metavar="FOLDER", help="parent folder of the runs")] = str(
        runs.OUT
    ),
    name: Annotated[str, typer.Option(metavar="NAME", help="of the folder and the job")] = "",
    sweep: Annotated[
        list[str] | None, typer.Option(metavar="KEY=A,B", help="one run for each value; repeatable")
    ] = None,
    chain: Annotated[
        int, typer.Option(metavar="N", min=1, help="number of jobs to run in sequence")
    ] = 1,
    check_data: Annotated[
        bool, typer.Option("--check-data", help="try tokenizer, data and rewards of each run first")
    ] = False,
    submit: Annotated[
        bool, typer.Option("--submit", help="submit; without it, only write the scripts")
    ] = False,
    test_only: Annotated[
        bool, typer.Option("--test-only", help="validate with sbatch, do not submit")
    ] = False,
) -> None:
    """Check a config and write it as a Slurm job that saves, requeues and resumes by itself."""
    load_config(config, [], "train")
    file = find(config)
    job = Job(
        account=account,
        image=str(Path(image).resolve()) if Path(image).is_file() else image,
        nemo_rl=checkout.resolve(),
        time=time,
        margin=60 * margin,
        partition=partition,
        mounts=tuple(mount for many in mounts or () for mount in many.split(",")),
        options=tuple(sbatch or ()),
        program=(program or PROGRAM).resolve(),
        max_requeues=max_requeues,
        retries=retries,
        stalled=None if stalled is None else 60 * stalled,
    )
    base = name or re.sub(r"[^\w.-]", "-", file.stem)
    sizes = Sizes(nodes, gpus_per_node)
    refuse_first(
        (
            (submit or test_only) and not shutil.which("sbatch"),
            "sbatch not found: log in to the cluster, or remove --submit",
        ),
        (not out, "--out: it is empty. Name the parent folder of the runs."),
        (submit and test_only, "--test-only never submits: remove --submit or --test-only"),
    )
    points = prepare.points(sweep or [], overrides or [])
    runs = []
    for point in points:
        folder = Path(out).resolve() / _name(base, point)
        runs.append(prepare.prepare(file, [*(overrides or []), *point], job, folder, sizes))
    prepare.apart(runs)
    for point in points if check_data else ():
        _check_data(file, [*(overrides or []), *point], checkout)
    if test_only:
        for run in runs:
            echo(prepare.sbatch(run, "--test-only"))
        return
    for run in runs:
        echo(f"{run.folder}: {run.size}", err=True)
    by_hand = () if submit else prepare.by_hand(job)
    findings = []
    for run in runs:
        findings += [finding for finding in run.findings if finding.severity != "error"]
    show([*findings, *by_hand], err=True)
    for run in () if submit else runs:
        prepare.write(run)
        echo(f"sbatch {run.folder}/job.sh")
    for answer, log in prepare.submit(runs, chain) if submit else ():
        echo(answer)
        echo(f"tail -F {log}", err=True)


def _check_data(file: Path, overrides: Sequence[str], checkout: Path) -> None:
    """`check --data` of a run. Raises typer.Exit where it fails: nothing is submitted."""
    words = ["check", str(file), *overrides, "--data", "--nemo-rl", str(checkout)]
    status = _in_a_process([sys.executable, "-m", "nemo_algos", *words]).returncode
    if status:
        echo("The check failed, so nothing was written or submitted.", color="red", err=True)
        raise typer.Exit(status)


def _in_a_process(words: list[str]) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(words)


def _name(base: str, point: tuple[str, ...]) -> str:
    """etr-quatro-1 for etr.yaml with method.name=quatro and grpo.seed=1. Raises ValueError."""
    name = "-".join([base, *(re.sub(r"[^\w.-]", "-", p.partition("=")[2]) for p in point)])
    if not re.fullmatch(r"\w[\w.-]{0,199}", name):
        raise ValueError(f"--name: must be at most 200 letters, digits and ._-, got {name!r}")
    return name
