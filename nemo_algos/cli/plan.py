"""The command `nemo-algos plan`."""

import json
import re
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from nemo_algos.cli.arguments import Config, NemoRL, Overrides, written
from nemo_algos.plan import page, report
from nemo_algos.plan.gpus import GPUS
from nemo_algos.plan.layouts import gpu_of, layouts, remedy
from nemo_algos.plan.layouts import plan as planned
from nemo_algos.preflight.check import judge, refuse, versions
from nemo_algos.preflight.models import model as facts
from nemo_algos.preflight.snapshot import load
from nemo_algos.terminal import Console, echo


def plan(
    config: Config,
    overrides: Overrides = None,
    gpu: Annotated[str, typer.Option(help="default: H100, GB200 over a NeMo-RL *n4g* config")] = "",
    model: Annotated[str, typer.Option(help="folder with config.json, for other models")] = "",
    mean_tokens: Annotated[
        float | None, typer.Option(help="of a sequence; default: 0.7 of the longest")
    ] = None,
    nodes: Annotated[str, typer.Option(help="e.g. 4,8: rank Megatron layouts on them")] = "",
    top: Annotated[int, typer.Option(help="layouts to show")] = 10,
    price: Annotated[float | None, typer.Option(help="of a GPU-hour: price layouts")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="to sum up; default: 100")] = None,
    html: Annotated[Path | None, typer.Option(help="write a page with memory by layout")] = None,
    nemo_rl: NemoRL = "",
    as_json: Annotated[bool, typer.Option("--json", help="numbers for scripts")] = False,
) -> None:
    """Memory by component, time by phase, GPU-hours, and the cheapest change that makes it fit."""
    run, findings = judge(written(config, overrides, "train"), load(nemo_rl or versions(config)[0]))
    refuse(findings)
    card = gpu or gpu_of(run.plain)
    if card not in GPUS:
        raise ValueError(f"--gpu {card}: choose {', '.join(GPUS)}")
    counts = _counts(nodes)
    if top < 1:
        raise ValueError(f"--top {top}: show 1 layout or more")
    if price is not None and not 0 <= price < inf:
        raise ValueError(f"--price {price:g}: write a number from 0")
    shape = facts(model) if model else run.model or facts(run["policy.model_name"])
    p = planned(run.plain, shape, GPUS[card], mean_tokens)
    found = [layout for n in counts for layout in layouts(p, n)]
    found.sort(key=lambda x: x.gpu_hours if len(counts) > 1 else x.step_seconds)
    change, sums = remedy(p), report.summed(p, steps or min(p.steps, 100), price)
    shown = list(report.tables(p, change, sums))
    if counts:
        shown.append(report.ranked(found, top, price) if found else "no layout fits those nodes")
    if html:
        page.write(html, [p, *found[:top]], shown)
    if as_json:
        more = {"change": change, "target": sums, "relative_errors": report.expected()}
        ranked = {"layouts": [x.numbers() for x in found[:top]]} if counts else {}
        echo(json.dumps(p.numbers() | more | ranked, indent=2))
        return
    console = Console(highlight=False)
    for part in shown:
        console.print(part, soft_wrap=isinstance(part, str))


def _counts(nodes: str) -> list[int]:
    if not re.fullmatch(r"(0*[1-9][0-9]*(,0*[1-9][0-9]*)*)?", nodes):
        raise ValueError(f"--nodes {nodes}: write numbers from 1, such as 4,8")
    return [int(count) for count in nodes.split(",") if count]
