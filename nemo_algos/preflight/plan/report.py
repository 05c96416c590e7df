"""A plan as tables for people, and as a page. Nine of ten measurements fell into a sum's range.

Beside it the seconds of a run's own steps, as NeMo-RL prints them in its driver's log.
"""

import io
import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from markupsafe import Markup
from rich.console import Console, RenderableType
from rich.table import Table

from nemo_algos import page
from nemo_algos.preflight.forecast.this_run import Forecast
from nemo_algos.preflight.plan import speed
from nemo_algos.preflight.plan.layouts import Change, Plan, measured_errors
from nemo_algos.style import COLORS, canvas, svg

TOTAL = "Total step time"
LINE = re.compile(r"• (\S[^:\n]*): (\d+(?:\.\d+)?)s\b")  # `  • policy_training: 28.10s (19.2%)`
PARTS = {  # of a plan: NeMo-RL's timers, of which a trainer has one
    "generation": ("generation", "exposed_generation"),
    "log-probs": ("policy_and_reference_logprobs",),
    "training": ("policy_training",),
    "refit": ("prepare_for_generation/transfer_and_update_weights", "weight_sync"),
}
GB = 1e9


LONGEST = 1e7  # seconds of a step that is believed


def read_steps(run: Path) -> dict[str, float]:
    """Median seconds by part, of `step` and of what is left, `rest`, of a driver's log.

    run: the log, or a folder of `nemo-algos slurm`, of which the newest is read. The first step
    compiles, so it counts only where it is alone. Raises ValueError for a log without steps.
    """
    logs = sorted(run.glob("logs/*-logs/ray-driver.log"), key=lambda path: path.stat().st_mtime)
    file = logs[-1] if logs else run
    if not file.is_file():
        raise ValueError(f"--measured {run}: no driver's log there. Name the log's file.")
    steps: list[dict[str, float]] = []
    for name, seconds in LINE.findall(file.read_text(errors="replace")):
        if name == TOTAL:
            steps.append({"step": float(seconds)})
        elif steps:
            steps[-1].setdefault(name, float(seconds))
    if not steps or not all(0 < step["step"] < LONGEST for step in steps):
        raise ValueError(
            f"--measured: {file} has no line {TOTAL!r} of NeMo-RL's, or one with a time that "
            "no step takes. Wait for the first step, or name another log."
        )
    counted = steps[1:] or steps
    found = {"step": statistics.median(step["step"] for step in counted)}
    for part, names in PARTS.items():
        seconds = []
        for step in counted:
            seconds.append(sum(step.get(name, 0) for name in names))
        found[part] = statistics.median(seconds)
    found["rest"] = found["step"] - sum(found[part] for part in PARTS)
    return found


def planned_parts(p: Plan) -> dict[str, float]:
    """The plan's seconds by the same parts; of generation beside training what is waited for."""
    rest = sum(p.phases.values()) - p.phases["generation"]
    parts = {
        "step": p.step_seconds,
        "generation": p.step_seconds - rest,
        "log-probs": p.phases["log-probs"] + p.phases["reference log-probs"],
        "training": p.phases["training"],
        "refit": p.phases["refit"],
    }
    return parts | {"rest": p.step_seconds - sum(parts[part] for part in PARTS)}


def within(value: float, kind: str, digits: int = 0) -> str:
    """The value and its range: 9 of 10 tests were measured so near to what was predicted."""
    share = measured_errors()[kind]["nine_of_ten"]
    low = value / (1 + share)
    high = value / (1 - share)
    return f"{value:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def _range(value: float, kind: str, digits: int = 0) -> str:
    """The range alone, for the cell below the value."""
    return within(value, kind, digits).partition("(")[2].rstrip(")")


def _table(first: str, *headings: str) -> Table:
    """Names in the first column, numbers in the others, with a line of room below."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def totals(
    p: Plan, steps: int, price: float | None = None, each: float | None = None
) -> dict[str, float]:
    """Tokens, seconds, GPU-hours and their price until this step; each: a step's, if measured."""
    seconds = steps * (each or p.step_seconds)
    hours = seconds * p.run.layout.gpus / 3600
    tokens = steps * p.run.rollouts * p.tokens
    cost = {"price": price * hours} if price else {}
    return {"steps": steps, "tokens": tokens, "seconds": seconds, "gpu_hours": hours} | cost


def tables(
    p: Plan, change: Change | None, sums: dict[str, float], ends: dict[float, float]
) -> Iterator[RenderableType]:
    """The model, its layout, bytes by component, seconds by phase, and what would make it fit.

    ends: seconds of a step by tokens of its mean sequence, where the user gives no mean.
    """
    run = p.run
    lay = p.run.layout
    yield (
        f"{run.model.parameters / 1e9:.1f}B parameters ({run.model.active_parameters / 1e9:.1f}B "
        f"active) on {lay.nodes} x {lay.gpus_per_node} {run.gpu.name}; {lay.backend}, "
        f"TP {lay.tensor}, PP {lay.pipeline}, CP {lay.context}, EP {lay.expert}, DP {lay.data}; "
        f"generation TP {lay.generation_tensor} on {lay.generation_gpus} GPUs"
    )
    parts = {
        "training": p.training,
        "log-probs": p.log_probs,
        "generation": p.generation,
        "node's host": p.host,
    }
    table = _table("GB on a GPU", *parts)
    components: dict[str, None] = {}  # in order, each once
    for part in parts.values():
        components |= dict.fromkeys(part)
    for name in components:
        cells = []
        for part in parts.values():
            cells.append(f"{part[name] / GB:.1f}" if part.get(name) else "")
        if any(cells):
            table.add_row(name, *cells)
    training, *others = (sum(part.values()) / GB for part in parts.values())
    table.add_row("sum", f"{training:.1f}", *(f"{x:.1f}" for x in others), style="bold")
    table.add_row("90 % range", _range(training, "peak", 1))
    memory = f"{p.run.gpu.memory / GB:.0f}"
    table.add_row("of", memory, memory, memory, f"{p.run.gpu.host / GB:,.0f}")
    table.add_row()
    yield table
    table = _table("seconds of a step", "")
    for name, seconds in p.phases.items():
        if seconds:
            table.add_row(name, f"{seconds:.0f}")
    together = "step (generation beside the rest)" if p.overlaps else "step"
    table.add_row(together, f"{p.step_seconds:.0f}", style="bold")
    table.add_row("90 % range", _range(p.step_seconds, "time"))
    table.add_row()
    yield table
    yield _lengths(p, ends)
    peak = measured_errors()["peak"]
    time = measured_errors()["time"]
    yield (
        f"Ranges: the error that 90 % of unseen tests of Megatron-LM stayed within (memory "
        f"{peak['nine_of_ten']:.0%}, median {peak['median']:.1%}; time {time['nine_of_ten']:.0%}, "
        f"median {time['median']:.0%}). Workspace sizes are assumed, not measured; so is the host "
        "memory of a node, unless --host-memory gives it."
    )
    yield _target(p, sums)
    yield _verdict(p, change)


def comparison(p: Plan, found: dict[str, float], sums: dict[str, float]) -> list[RenderableType]:
    """Planned seconds beside a run's own, and what the rest of it takes by these."""
    table = _table("seconds of a step", "planned", "measured")
    for name, seconds in planned_parts(p).items():
        table.add_row(name, f"{seconds:.0f}", f"{found[name]:.0f}")
    return [table, f"by the measured steps, {_target(p, sums)}"]


def _target(p: Plan, sums: dict[str, float]) -> str:
    """What the run takes so far, and to its own end where the sums stop before."""
    hours = sums["seconds"] / 3600
    lasting = f"{hours / 24:.1f} days" if hours > 48 else f"{hours:.1f} hours"
    cost = ", which cost {:,.0f}" if "price" in sums else ""
    price = sums.get("price", 0.0)
    text = (
        f"{sums['steps']:,} of {p.steps:,} steps: {sums['tokens'] / 1e9:.2f}B tokens, {lasting}, "
        f"{sums['gpu_hours']:,.0f} GPU-hours{cost.format(price)}"
    )
    share = p.steps / sums["steps"]
    if share <= 1:
        return text
    return (
        f"{text}. To its end it takes {share * sums['seconds'] / 86400:,.1f} days and "
        f"{share * sums['gpu_hours']:,.0f} GPU-hours{cost.format(share * price)}, without "
        "validation and checkpoints: `grpo.max_num_steps` sets the end, unless "
        "`grpo.max_num_epochs` comes first."
    )


def _lengths(p: Plan, ends: dict[float, float]) -> str:
    longest = speed.longest(p.run, p.tokens)
    limit = p.run["policy.max_total_sequence_length"]
    reason = "the limit" if longest == limit else f"{speed.TAIL} times the mean"
    if speed.TAIL * p.tokens < longest:
        reason = "the limit: the model's name has no Instruct or Chat, so some may never end"
    text = f"Assumed: sequences of {p.tokens:,.0f} tokens, the longest {longest:,.0f} ({reason})."
    if not ends:
        return text
    both = " and ".join(f"{s:,.0f} s with {tokens:,.0f} tokens" for tokens, s in ends.items())
    return f"{text} Without --mean-tokens the mean is a guess: a step takes {both}."


def _verdict(p: Plan, change: Change | None) -> str:
    if not p.misfits:
        close = ", but tight: the top of the range does not fit" if p.tight else ""
        return (
            f"[green]fits[/green]{close}; an engine's cache holds {p.cached_sequences:.0f} "
            "sequences of full length"
        )
    keys = " ".join(f"{k}={json.dumps(v)}" for k, v in (change or {}).items())
    advice = f"the cheapest change that fits: {keys}" if change else "no single key would help"
    if p.trains and p.scores and p.generates:
        advice = "offload less, use more nodes, or set --host-memory to what your nodes have"
    return f"[red]{' and '.join(p.misfits)}[/red]; {advice}"


def sizes(p: Plan) -> str:
    lay = p.run.layout
    again = p.run.backend("activation_checkpointing")
    return (
        f"TP {lay.tensor} PP {lay.pipeline} CP {lay.context} EP "
        f"{lay.expert}{', recomputed' if again else ''}"
    )


def ranking(
    nodes: int, found: list[Plan], reason: str, price: float | None = None
) -> Iterator[RenderableType]:
    """The fastest layouts on so many nodes, and the keys of the first; or the reason for none."""
    on = "1 node" if nodes == 1 else f"{nodes} nodes"
    if not found:
        yield f"{on}: no layout. {reason[0].upper()}{reason[1:]}"
        return
    paid = ("price a step",) if price else ()
    table = _table(on, "GB", "step s", "GPU-hours a step", *paid)
    for p in found:
        hours = p.step_seconds * p.run.layout.gpus / 3600
        table.add_row(
            sizes(p),
            within(sum(p.training.values()) / GB, "peak") + (" tight" if p.tight else ""),
            within(p.step_seconds, "time"),
            f"{hours:.1f}",
            *([f"{hours * price:,.2f}"] if price else []),
        )
    yield table
    keys = " ".join(f"{k}={json.dumps(v)}" for k, v in found[0].change.items())
    yield f"{on}, the first: {keys or 'as configured'}"


def write_page(
    path: Path, plans: list[Plan], tables: list[RenderableType], forecast: Forecast
) -> None:
    """The page of these layouts, the config's first, and of what its run will do when.

    Raises ValueError where its folder does not exist.
    """
    if not path.parent.is_dir():
        raise ValueError(f"--html {path}: the folder {path.parent} does not exist. Create it.")
    console = Console(record=True, width=120, file=io.StringIO(), highlight=False)
    for table in tables:
        console.print(table, soft_wrap=isinstance(table, str))
    parts = console.export_html(code_format="{stylesheet}\0{code}").split("\0")
    style, code = map(Markup, parts)
    figures = [_figure(plans), _timeline(plans[0], forecast)]
    page.write(path, "plan.html", {"stylesheet": style, "figures": figures, "tables": code})


def _timeline(p: Plan, forecast: Forecast) -> Markup:
    """The learning rate, validations and saves over the steps and the GPU-hours of a run."""
    t = forecast.timeline
    validated = [*[0] * t.at_start, *t.validations, *[t.steps] * t.at_end]
    hours = totals(p, 1)["gpu_hours"]
    with canvas((9, 2.6), constrained_layout=True) as (figure, axes):
        rates = forecast.rates or [(1, 0.0)]
        axes.plot([step for step, _ in rates], [rate for _, rate in rates], color=COLORS[0])
        axes.set_ylabel("learning rate")
        axes.set_xlabel("step")
        axes.set_xlim(0, t.steps)
        axes.set_title("This run")
        for height, name, steps in ((-0.1, "validations", validated), (-0.2, "saves", t.saves)):
            marks = [step / t.steps for step in steps[:: max(1, len(steps) // 200)]]
            place = {"transform": axes.transAxes, "clip_on": False}
            color = COLORS[1 if name == "validations" else 2]
            axes.plot(marks, [height] * len(marks), "|", color=color, markersize=8, **place)
            axes.text(1.01, height, f"{len(steps)} {name}", color=color, va="center", **place)
        axes.tick_params(axis="x", pad=24)
        top = axes.secondary_xaxis("top", functions=(lambda x: x * hours, lambda x: x / hours))
        top.set_xlabel("GPU-hours without validation")
        return Markup(svg(figure))


def _figure(plans: list[Plan]) -> Markup:
    """Bars of training's components, the range of their sum, and the GPU's memory."""
    size = (9, 1.6 + 0.35 * len(plans))
    with canvas(size, constrained_layout=True) as (figure, axes):
        names = list(dict.fromkeys(name for p in plans for name in p.training))
        rows = range(len(plans))
        starts = [0.0] * len(plans)
        for i, name in enumerate(names):
            widths = [p.training.get(name, 0.0) / GB for p in plans]
            axes.barh(rows, widths, left=starts, label=name, color=COLORS[i % len(COLORS)])
            starts = [a + b for a, b in zip(starts, widths, strict=True)]
        share = measured_errors()["peak"]["nine_of_ten"]
        ranges = [
            [x * share / (1 + share) for x in starts],
            [x * share / (1 - share) for x in starts],
        ]
        axes.errorbar(starts, rows, xerr=ranges, fmt="none", color="#333333", capsize=2)
        memory = plans[0].run.gpu
        axes.axvline(memory.memory / GB, color="#333333", linestyle="--")
        axes.set_yticks(
            rows, ["as configured", *(f"{p.run.layout.nodes} nodes, {sizes(p)}" for p in plans[1:])]
        )
        axes.invert_yaxis()
        axes.set_xlabel("GB on a GPU")
        axes.set_title(f"Training memory; dashed: {memory.name}")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        return Markup(svg(figure))
