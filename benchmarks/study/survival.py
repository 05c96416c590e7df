"""The survival map: which method, with which correction, still learns beside which mismatch.

A regime with a `column` is one of the map's; its arms are named METHOD, or METHOD, CORRECTION.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from design import Study, StudyCell
from runner import COLLAPSED_ENTROPY, COLLAPSED_PASS, Row, collapsed
from summary import Estimate, estimate

from nemo_algos.style import save

MEANS = {"entropy": "entropy/exact", "reward": "reward/mean", "mismatch": "mismatch/mean"}
STEP = "collapse step"
HEADINGS = ("column", "method", "correction", "runs", "collapsed", STEP, "pass@1", "low", "high")
NONE = "none"  # the correction of an arm without one
SCALE = (0.0, 0.45)  # of pass@1


class Square(NamedTuple):
    """The runs of a method with a correction in a column.

    collapse_steps: where they are known; means: by the names of MEANS.
    """

    runs: int
    collapsed: int
    collapse_steps: list[float]
    passed: Estimate
    means: dict[str, float]


Squares = dict[tuple[str, str, str], Square]  # by column, method, correction
Panel = dict[tuple[str, str], Square]  # by method and what is beside it


def squares(study: Study, cells: Sequence[StudyCell], rows: dict[str, Row]) -> Squares:
    """Of the runs that have finished; of equal configs the seeds of all regimes count."""
    runs = defaultdict[tuple[str, str], set[str]](set)
    for cell in cells:
        runs[cell.regime, cell.arm].add(cell.run)
    out: Squares = {}
    for name, regime in study.regimes.items():
        for arm in regime.arms if regime.column else ():
            own = runs[name, arm]
            every = set[str]().union(*(other for other in runs.values() if other & own))
            if found := [rows[run] for run in sorted(every) if run in rows]:
                method, _, correction = arm.partition(", ")
                means = {k: [float(r[c]) for r in found if c in r] for k, c in MEANS.items()}
                out[regime.column, method, correction or NONE] = Square(
                    len(found),
                    sum(map(collapsed, found)),
                    [float(row[STEP]) for row in found if STEP in row],
                    estimate([float(row["pass@1"]) for row in found]),
                    {name: fmean(values) for name, values in means.items() if values},
                )
    return out


def table(found: Squares) -> list[dict[str, object]]:
    """A row per square; its median collapse step. A number that no run has is empty."""
    rows = []
    for key, square in found.items():
        step = median(square.collapse_steps) if square.collapse_steps else None
        numbers = (step, *square.passed[1:4], *(square.means.get(name) for name in MEANS))
        written = ["" if x is None else f"{x:.4g}" for x in numbers]
        values = (*key, square.runs, square.collapsed, *written)
        rows.append(dict(zip((*HEADINGS, *MEANS), values, strict=True)))
    return rows


def draw(found: Squares, path: Path) -> None:
    """Above, methods by columns without a correction; below, by corrections, where they have some.

    A square is pass@1 of the trained weights and half of its 95 % interval, then how many runs
    there are, or how many of them collapsed, and when.
    """
    columns, methods, corrections = (list(dict.fromkeys(k[i] for k in found)) for i in range(3))
    several = [c for c in columns if len({m for d, m, x in found if d == c and x != NONE}) > 1]
    there = [[x for x in corrections if any((c, m, x) in found for m in methods)] for c in several]
    upper = {m for c, m, x in found if x == NONE and c not in several}
    heights = [len(upper), len(methods)][: 1 + bool(several)]
    size = (1.5 + 0.9 * len(columns), 1.6 + 0.42 * sum(heights))
    widths = [max(3, len(own)) for own in there] or [1]  # a title needs three
    ratios = {"width_ratios": widths, "height_ratios": heights}
    rows = {"nrows": len(heights), "squeeze": False, "gridspec_kw": ratios}
    with save(path, size, len(widths), **rows) as (figure, axes):
        grid = axes[0, 0].get_gridspec()
        for axis in axes[0]:
            axis.remove()
        above = {(m, c): s for (c, m, x), s in found.items() if x == NONE and m in upper}
        _panel(figure.add_subplot(grid[0, :]), above, columns, "No correction")
        for axis, column, own in zip(axes[-1] if several else (), several, there, strict=True):
            below = {(m, x): s for (c, m, x), s in found.items() if c == column}
            _panel(axis, below, own, fill(f"Corrections of {column}", 9 * max(3, len(own))))
        lost = f"x: collapsed (pass@1 below {COLLAPSED_PASS}, entropy below {COLLAPSED_ENTROPY}), and at which step"
        figure.suptitle(f"pass@1 after training: mean ± half of the 95 % CI; {lost}")


def _panel(axis: Any, found: Panel, columns: Sequence[str], title: str) -> None:
    methods = list(dict.fromkeys(method for method, _ in found))
    means = np.full((len(methods), len(columns)), np.nan)
    for (method, column), square in found.items():
        means[methods.index(method), columns.index(column)] = square.passed.mean
    axis.imshow(means, cmap="cividis", vmin=SCALE[0], vmax=SCALE[1], aspect="auto")
    for (method, column), square in found.items():
        dark = square.passed.mean < sum(SCALE) / 2
        text = {"color": "white" if dark else "black", "ha": "center", "va": "center"}
        at = columns.index(column), methods.index(method)
        axis.text(*at, caption(square), **text, fontsize=7, linespacing=1.25)
    axis.set_xticks(range(len(columns)), [_label(c, found) for c in columns])
    axis.set_yticks(range(len(methods)), methods)
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    axis.set_title(title)


def _label(column: str, found: Panel) -> str:
    """Over the mean |log-ratio| of sampler and trainer that its runs measured."""
    means = [square.means.get("mismatch") for (_, c), square in found.items() if c == column]
    measured = [mean for mean in means if mean is not None]
    nats = f"{fmean(measured):.3f} nats" if measured else ""
    return f"{fill(column, 9)}\n{nats}"


def caption(square: Square) -> str:
    """Such as `0.38 ±0.02` over `n 5`, or over `x 2 of 5: 17`, the median step."""
    value, half = square.passed.mean, (square.passed.high - square.passed.low) / 2
    interval = f" ±{half:.2f}" if square.runs > 1 else ""
    at = f": {median(square.collapse_steps):.0f}" if square.collapse_steps else ""
    lost = f"x {square.collapsed} of {square.runs}{at}"
    return f"{value:.2f}{interval}\n{lost if square.collapsed else f'n {square.runs}'}"
