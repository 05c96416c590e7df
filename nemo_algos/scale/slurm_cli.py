"""The command `nemo-algos slurm`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from nemo_algos.config import ConfigError


def slurm(
    config: Annotated[str, typer.Argument(help="a YAML file, or the name of a shipped one")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key.path=value")] = None,
    account: Annotated[str, typer.Option(envvar="SBATCH_ACCOUNT")] = "",
    image: Annotated[str, typer.Option(envvar="CONTAINER", help="or a .sqsh file")] = "",
    nemo_rl: Annotated[
        Path, typer.Option(envvar="NEMO_RL", help="checkout with the image's ray.sub")
    ] = Path("nemo-rl"),
    partition: Annotated[str, typer.Option(envvar="SBATCH_PARTITION")] = "",
    nodes: Annotated[int | None, typer.Option(help="cluster.num_nodes")] = None,
    time: Annotated[str, typer.Option(help="limit of one job, as sbatch reads it")] = "4:00:00",
    margin: Annotated[int, typer.Option(help="minutes before the limit to stop and save")] = 15,
    mounts: Annotated[list[str] | None, typer.Option(help="HOST:CONTAINER, repeatable")] = None,
    sbatch: Annotated[list[str] | None, typer.Option(help="its option, e.g. --qos=high")] = None,
    program: Annotated[Path | None, typer.Option(help="instead of run_grpo_math.py")] = None,
    out: Annotated[Path, typer.Option(help="parent of the runs' folders")] = Path("runs/slurm"),
    name: Annotated[str, typer.Option(help="of the folder and the job")] = "",
    sweep: Annotated[list[str] | None, typer.Option(help="key=a,b: a run of each")] = None,
    chain: Annotated[int, typer.Option(min=1, help="jobs, one after another")] = 1,
    version: Annotated[str, typer.Option(help="of NeMo-RL; default: the file's first")] = "",
    submit: Annotated[bool, typer.Option("--submit", help="else only write the scripts")] = False,
) -> None:
    """Check a config and write it as a Slurm job that saves, requeues and resumes by itself."""
    from nemo_algos.config import find
    from nemo_algos.scale import slurm as jobs
    from nemo_algos.scale.check import versions
    from nemo_algos.scale.slurm_job import PROGRAM, Job

    file, version = find(config), version or versions(config)[0]
    job = Job(
        account=account,
        image=str(Path(image).resolve()) if Path(image).is_file() else image,
        nemo_rl=nemo_rl.resolve(),
        time=time,
        margin=60 * margin,
        partition=partition,
        mounts=tuple(mounts or ()),
        options=tuple(sbatch or ()),
        program=(program or PROGRAM).resolve(),
    )
    try:
        runs = [
            jobs.prepare(file, [*(overrides or []), *point], job, folder, nodes, version)
            for point in jobs.points(sweep or [])
            for folder in [out.resolve() / _name(name or file.stem, point)]
        ]
        for script in [jobs.write(run) for run in runs]:
            typer.echo(jobs.submit(script, chain) if submit else f"sbatch {script}")
    except (ConfigError, ValueError, OSError) as error:
        typer.echo(error, err=True)
        raise typer.Exit(2) from None


def _name(base: str, point: tuple[str, ...]) -> str:
    """etr-quatro-1 for etr.yaml with method.name=quatro and grpo.seed=1."""
    return re.sub(r"[^\w.-]", "-", "-".join([base, *(p.partition("=")[2] for p in point)]))
