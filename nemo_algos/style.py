"""How every figure looks: a run's curves, the report's, the study's."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Okabe and Ito's colours, told apart by colour-blind readers, on white and on black: without their
# yellow, and with grey for black
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
STYLE: Any = {
    "text.parse_math": False,
    "font.size": 8.5,
    "font.family": "DejaVu Sans",  # comes with matplotlib; the page names substitutes
    "svg.fonttype": "none",
    "axes.prop_cycle": f"cycler('color', {list(COLORS)})",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#333333",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "figure.titlesize": 10,
    "savefig.facecolor": "white",
}


def plain_ticks(figure: Any) -> None:
    """10 and 0.001 on logarithmic axes, whose usual labels are mathtext, which is off."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            base: Any = getattr(axis.get_transform(), "base", None)
            if isinstance(axis.get_major_formatter(), LogFormatter):
                axis.set_major_formatter(Plain(base, labelOnlyBase=True))
            if isinstance(axis.get_minor_formatter(), LogFormatter):
                axis.set_minor_formatter(Plain(base, labelOnlyBase=False))


@contextmanager
def canvas(size: tuple[float, float], salt: str = "", **options: Any) -> Iterator[Any]:
    """(figure, axes) to draw on, as `plt.subplots` makes them; salt: of the ids in its SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context(STYLE | {"svg.hashsalt": salt}):
        figure, axes = plt.subplots(figsize=size, **options)
        yield figure, axes
        plt.close(figure)


@contextmanager
def save(path: Path, size: tuple[float, float], columns: int = 1, **options: Any) -> Iterator[Any]:
    """(figure, axes) to draw on, saved as this file; its folder is made."""
    with canvas(size, ncols=columns, constrained_layout=True, **options) as (figure, axes):
        yield figure, axes
        plain_ticks(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def svg(figure: Any) -> str:
    """The figure for a page: the same text whenever it is drawn."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()[out.getvalue().index("<svg") :]
