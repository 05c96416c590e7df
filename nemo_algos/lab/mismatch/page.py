"""The verdict as a page: by place, by probability, by response, by age of the weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from nemo_algos import page
from nemo_algos.lab.mismatch import CAUSES
from nemo_algos.lab.mismatch.responses import Array, Responses
from nemo_algos.lab.mismatch.verdict import Diagnosis
from nemo_algos.style import COLORS, canvas, plain_ticks, svg

# inches; of an axis; points that are drawn
SIZE = (5.2, 3.0)
BINS = 24
SHOWN = 3000
MEDIAN = COLORS[0]
HIGH = COLORS[1]
POINT = COLORS[0]


def write(path: Path, verdict: Diagnosis, files: Sequence[str]) -> None:
    """The page; files: their names, as it shows them."""
    figures = []
    for draw in FIGURES:
        figures.append((_svg(draw, verdict.tokens), " ".join(draw.__doc__.split())))
    values = {"verdict": verdict, "numbers": verdict.numbers(), "texts": CAUSES}
    page.write(path, "mismatch.html", {**values, "figures": figures, "files": files})


def _svg(draw: Any, tokens: Responses) -> Markup:
    with canvas(SIZE, salt=draw.__name__, constrained_layout=True) as (figure, axes):
        draw(axes, tokens)
        plain_ticks(figure)
        return Markup(svg(figure))


def by_place(axes: Any, t: Responses) -> None:
    """A template or BOS fades from the first token on, positions grow, a boundary is a step."""
    _bands(axes, t.column("place").astype(float), np.abs(t.d))
    axes.set(title="By place in the response", xlabel="place, tokens", ylabel="|d|, nats")


def by_probability(axes: Any, t: Responses) -> None:
    """A temperature is a line that crosses 0, top-p stays below it, noise is a cloud around it."""
    from matplotlib.ticker import SymmetricalLogLocator

    p = np.exp(np.clip(t.column("trainer"), -30, 0))
    some = np.linspace(0, len(p) - 1, min(len(p), SHOWN)).astype(int)
    points = {"s": 5, "color": POINT, "alpha": 0.35, "linewidths": 0, "rasterized": True}
    axes.axhline(0, color="#888888", linewidth=0.8)
    axes.scatter(np.maximum(p, 1e-6)[some], t.d[some], **points)
    axes.set_xscale("log")
    near = max(float(np.quantile(np.abs(t.d), 0.5)), 1e-3)
    axes.set_yscale("symlog", linthresh=near)
    axes.yaxis.set_major_locator(SymmetricalLogLocator(linthresh=near, base=10))
    axes.set(title="By probability of the token", xlabel="probability, trainer", ylabel="d, nats")


def by_response(axes: Any, t: Responses) -> None:
    """Blocks of exact responses between others: a stale cache, old weights, a pack's first ones."""
    level = t.means(np.abs(t.d))
    axes.plot(np.arange(len(level)), np.maximum(level, 1e-8), ".", color=POINT, markersize=4)
    axes.set_yscale("log")
    axes.set(title="By response, in the files' order", xlabel="response", ylabel="mean |d|, nats")


def by_age(axes: Any, t: Responses) -> None:
    """Old weights grow with their age; what is the same at every age is no matter of refits."""
    if t.age is None or np.ptp(t.age) == 0:
        axes.set_axis_off()
        text = "no weights_version,\nor one alone, in these files"
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    else:
        _bands(axes, t.age[t.row].astype(float), np.abs(t.d))
    axes.set(title="By age of the weights", xlabel="updates since", ylabel="|d|, nats")


def _bands(axes: Any, x: Array, size: Array) -> None:
    """Median, and from there to the 95th percentile, over x; of many values of x in bins."""
    edges = np.unique(np.quantile(x, np.linspace(0, 1, BINS + 1)))
    group = np.digitize(x, edges[1:-1]) if len(np.unique(x)) > 2 * BINS else x
    keys = np.unique(group)
    parts = []
    for k in keys:
        parts.append((x[group == k].mean(), np.quantile(size[group == k], [0.5, 0.95])))
    at, (middle, high) = [m for m, _ in parts], np.maximum([q for _, q in parts], 1e-8).T
    if len(at) < BINS / 2:
        axes.set_xticks(at)
    axes.plot(at, middle, "o-", color=MEDIAN, markersize=3, label="median")
    axes.plot(at, high, "o-", color=HIGH, markersize=3, label="95th percentile")
    axes.set_yscale("log")
    axes.legend()


FIGURES: Any = (by_place, by_probability, by_response, by_age)
