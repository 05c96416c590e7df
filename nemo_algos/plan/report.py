"""A plan as tables for people."""

from rich.console import Console
from rich.table import Table

from nemo_algos.plan.layouts import Change, Plan

GB = 1e9


def show(p: Plan, change: Change | None, console: Console) -> None:
    """The model, its layout, bytes by component, seconds by phase, and what would make it fit."""
    run, lay = p.run, p.run.layout
    console.print(
        f"{run.model.parameters / 1e9:.1f}B parameters ({run.model.active_parameters / 1e9:.1f}B "
        f"active) on {lay.nodes} x {lay.gpus_per_node} {run.gpu.name}; {lay.backend}, "
        f"TP {lay.tensor}, PP {lay.pipeline}, CP {lay.context}, EP {lay.expert}, DP {lay.data}; "
        f"generation TP {lay.generation_tensor} on {lay.generation_gpus} GPUs"
    )
    console.print(_bytes(p))
    console.print(_seconds(p))
    steps = min(p.steps, 100)
    tokens, seconds = steps * run.rollouts * p.tokens, steps * p.step_seconds
    hours = f"{seconds / 3600:.1f} hours, {seconds * lay.gpus / 3600:,.0f} GPU-hours"
    console.print(f"{steps} of {p.steps} steps: {tokens / 1e9:.2f}B tokens, {hours}")
    console.print(_verdict(p, change), soft_wrap=True)


def _bytes(p: Plan) -> Table:
    table = Table("GB on a GPU", "training", "generation", "on a node's host", box=None)
    parts = (p.training, p.generation, p.host)
    for name in p.training | p.generation | p.host:
        cells = [f"{part[name] / GB:.1f}" if name in part else "" for part in parts]
        table.add_row(name, *cells)
    totals = [f"{sum(part.values()) / GB:.1f}" for part in parts]
    table.add_row("sum", *totals, style="bold")
    memory = f"{p.run.gpu.memory / GB:.0f}"
    table.add_row("of", memory, memory, "")
    return table


def _seconds(p: Plan) -> Table:
    table = Table("seconds of a step", "", box=None)
    for name, seconds in p.phases.items():
        table.add_row(name, f"{seconds:.0f}")
    together = "step (generation beside the rest)" if p.overlaps else "step"
    table.add_row(together, f"{p.step_seconds:.0f}", style="bold")
    return table


def _verdict(p: Plan, change: Change | None) -> str:
    problems = [] if p.trains else ["training does not fit the GPU"]
    if not p.generates:
        problems.append("the KV cache does not hold one sequence of full length")
    if not problems:
        held = f"{p.cached_sequences:.0f} sequences of full length"
        return f"[green]fits[/green]: an engine's cache holds {held}"
    keys = " ".join(f"{k}={v}" for k, v in (change or {}).items())
    advice = f"the cheapest change that would: {keys}" if change else "no single key would help"
    return f"[red]{' and '.join(problems)}[/red]; {advice}"


def ranked(plans: list[Plan], top: int) -> Table:
    """The fastest layouts."""
    columns = ("nodes", "TP", "PP", "CP", "EP", "recompute", "GB", "step s", "GPU-hours a step")
    table = Table(*columns, box=None)
    for p in plans[:top]:
        lay = p.run.layout
        sizes = (lay.nodes, lay.tensor, lay.pipeline, lay.context, lay.expert)
        recomputed = "yes" if p.run.backend("activation_checkpointing") else "no"
        table.add_row(
            *map(str, sizes),
            recomputed,
            f"{sum(p.training.values()) / GB:.0f}",
            f"{p.step_seconds:.0f}",
            f"{p.step_seconds * lay.gpus / 3600:.1f}",
        )
    return table
