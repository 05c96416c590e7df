"""The command `nemo-algos plan`."""

import json
import re
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer
from omegaconf import OmegaConf

from nemo_algos.cli.arguments import Config, NemoRL, Overrides, load_config, show
from nemo_algos.interpolation import evaluating
from nemo_algos.preflight.check.judge import judge, refuse
from nemo_algos.preflight.check.known_models import model as facts
from nemo_algos.preflight.check.release import find
from nemo_algos.preflight.forecast.this_run import forecast_of, lines
from nemo_algos.preflight.plan import report
from nemo_algos.preflight.plan.layouts import both_ends, gpu_of, measured_errors, with_keys
from nemo_algos.preflight.plan.layouts import plan as planned
from nemo_algos.preflight.plan.nemo_rl_arguments import GPUS
from nemo_algos.preflight.plan.search import checker, layouts, remedy
from nemo_algos.terminal import Console, echo


def plan(
    config: Config,
    overrides: Overrides = None,
    gpu: Annotated[
        str, typer.Option(metavar="NAME", help="default: H100, or GB200 for *n4g* configs")
    ] = "",
    model: Annotated[
        str, typer.Option(metavar="FOLDER", help="of an unknown model's config.json")
    ] = "",
    mean_tokens: Annotated[
        float | None,
        typer.Option(metavar="N", help="mean sequence length; default: 0.7 of the longest"),
    ] = None,
    nodes: Annotated[
        str, typer.Option(metavar="N,N", help="numbers of nodes to compare Megatron layouts on")
    ] = "",
    top: Annotated[int, typer.Option(metavar="N", help="layouts to show per node count")] = 10,
    host_memory: Annotated[
        float | None,
        typer.Option(metavar="GB", help="of a node; default: 2000, of GB200 960"),
    ] = None,
    price: Annotated[float | None, typer.Option(metavar="PRICE", help="of a GPU-hour")] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="steps of the run; default: 100")
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option(
            "--measured", metavar="LOG", help="driver's log or Slurm run with first steps"
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write an HTML page with memory charts")
    ] = None,
    nemo_rl: NemoRL = "",
    as_json: Annotated[bool, typer.Option("--json", help="print numbers as JSON")] = False,
) -> None:
    """Memory by component, time by phase, GPU-hours, and the cheapest change that makes it fit."""
    given = load_config(config, overrides, "train")
    release = find(nemo_rl)
    if model:
        with evaluating():
            OmegaConf.update(given, "policy.model_name", model)
    run, findings = judge(given, release)
    show((f for f in refuse(findings) if f.severity == "warning"), err=True)
    card = gpu or gpu_of(run.plain)
    if card not in GPUS:
        raise ValueError(f"--gpu: must be one of {', '.join(GPUS)}, got {card!r}")
    if host_memory is not None and not 0 < host_memory < inf:
        raise ValueError(f"--host-memory {host_memory:g}: must be a finite number above 0")
    sheet = GPUS[card]
    if host_memory:
        sheet = sheet._replace(host=host_memory * 1e9)
    counts = _counts(nodes)
    if top < 1:
        raise ValueError(f"--top {top}: must be at least 1")
    if price is not None and not 0 <= price < inf:
        raise ValueError(f"--price {price:g}: must be a finite number from 0")
    shape = run.model or facts(run["policy.model_name"])
    own_end = with_keys(run.plain, {"grpo.max_num_steps": run.last_step})
    p = planned(own_end, shape, sheet, mean_tokens)
    ends = {} if mean_tokens else both_ends(p)
    accepts = checker(given, release)
    found = {n: layouts(p, n, accepts, top) for n in counts}
    change = remedy(p, accepts)
    sums = report.totals(p, steps or min(p.steps, 100), price)
    shown = list(report.tables(p, change, sums, ends))
    every = []
    without = {}  # why there is no layout, by the number of nodes
    for n, (some, reason) in found.items():
        shown += report.ranking(n, some, reason, price)
        every += some
        if reason:
            without[n] = reason
    found_steps = report.read_steps(own) if own else {}
    if found_steps:
        total = report.totals(p, int(sums["steps"]), price, found_steps["step"])
        shown += report.comparison(p, found_steps, total)
    if html:
        report.write_page(html, [p, *every], shown, forecast_of(run))
        echo(f"page: {html}", err=True)
    if as_json:
        more: dict[str, Any] = {"change": change, "target": sums}
        more["relative_errors"] = measured_errors()
        if found_steps:
            more["measured_seconds"] = found_steps
        if ends:
            more["step_seconds_by_mean_tokens"] = ends
        if counts:
            more |= {"layouts": [x.numbers() for x in every], "none": without}
        echo(json.dumps(p.numbers() | more, indent=2))
    else:
        console = Console(highlight=False)
        for part in shown:
            console.print(part, soft_wrap=isinstance(part, str) and not console.is_terminal)
        for line in lines(run, forecast_of(run), console.is_terminal):
            echo(line)
    if without:
        raise typer.Exit(1)


def _counts(nodes: str) -> list[int]:
    if not re.fullmatch(r"(0*[1-9][0-9]*(,0*[1-9][0-9]*)*)?", nodes):
        raise ValueError(f"--nodes {nodes}: must be whole numbers from 1, such as 4,8")
    return [int(count) for count in nodes.split(",") if count]
