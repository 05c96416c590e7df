"""A plan as a page of its own: memory by component for each layout, and the tables."""

import io
from pathlib import Path

from markupsafe import Markup
from rich.console import Console, RenderableType

from nemo_algos import page
from nemo_algos.preflight.plan.layouts import Plan, measured_errors
from nemo_algos.preflight.plan.report import GB, sizes
from nemo_algos.style import COLORS, canvas, svg


def write(path: Path, plans: list[Plan], tables: list[RenderableType]) -> None:
    """The page of these layouts, the config's first. Raises ValueError where its folder is not."""
    if not path.parent.is_dir():
        raise ValueError(f"--html {path}: the folder {path.parent} does not exist. Create it.")
    console = Console(record=True, width=120, file=io.StringIO(), highlight=False)
    for table in tables:
        console.print(table, soft_wrap=isinstance(table, str))
    parts = console.export_html(code_format="{stylesheet}\0{code}").split("\0")
    style, code = map(Markup, parts)
    page.write(path, "plan.html", {"stylesheet": style, "figure": _figure(plans), "tables": code})


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
