"""The survival map: which method, with which correction, still learns beside which mismatch.

A regime with a `column` is one of the map's; its arms are named METHOD, or METHOD, CORRECTION.
"""

from pathlib import Path
from textwrap import fill
from typing import Any

import pandas as pd
from runner import COLLAPSED_ENTROPY, COLLAPSED_PASS, collapsed
from summary import paired

from nemo_algos.style import save

# a column of map.csv -> of results.csv, whose mean it is
MEANS = {"entropy": "entropy/exact", "reward": "reward/mean", "mismatch": "mismatch/mean"}
STEP = "collapse step"
NONE = "none"  # the correction of an arm without one
SCALE = (0.0, 0.45)  # of pass@1


def squares(study: dict[str, Any], runs: pd.DataFrame) -> pd.DataFrame:
    """map.csv: a row per column, method and correction, of the runs that have finished.

    Of equal configs the seeds of all regimes count. `collapse step` is a median.
    """
    once = runs.drop_duplicates("run").set_index("run")
    of_arm = runs.groupby(["regime", "arm"], sort=False)["run"].agg(set)
    rows = {}
    for name, regime in study["regimes"].items():
        for arm in regime["arms"] if regime["column"] else ():
            own = of_arm.get((name, arm), set())
            every = set().union(*(other for other in of_arm if other & own))
            if not every:
                continue
            found = once.loc[sorted(every)]
            method, _, correction = arm.partition(", ")
            interval = paired(found["pass@1"])
            row = {"column": regime["column"], "method": method, "correction": correction or NONE}
            key = tuple(row.values())
            row |= {"runs": len(found)}
            row |= {"collapsed": sum(collapsed(run.dropna()) for _, run in found.iterrows())}
            row |= {STEP: found[STEP].median() if STEP in found else None}
            row |= {"pass@1": interval["mean"], "low": interval.get("low")}
            row |= {"high": interval.get("high")}
            row |= {mean: found[of].mean() for mean, of in MEANS.items() if of in found}
            rows[key] = row
    return pd.DataFrame(list(rows.values()))


def draw(table: pd.DataFrame, path: Path) -> None:
    """Above, methods by columns without a correction; below, by corrections, where they have some.

    A square is pass@1 of the trained weights and half of its 95 % interval, then how many runs
    there are, or how many of them collapsed, and when.
    """
    corrected = table[table["correction"] != NONE]
    methods = corrected.groupby("column", sort=False)["method"].nunique()
    several = [c for c in table["column"].unique() if methods.get(c, 0) > 1]
    above = table[table["correction"] == NONE]
    upper = above.loc[~above["column"].isin(several), "method"].unique()
    above = above[above["method"].isin(upper)]
    below = [table[table["column"] == column] for column in several]
    heights = [len(upper)] + ([table["method"].nunique()] if several else [])
    widths = [max(3, own["correction"].nunique()) for own in below] or [1]  # a title needs three
    size = (1.5 + 0.9 * table["column"].nunique(), 1.6 + 0.42 * sum(heights))
    ratios = {"width_ratios": widths, "height_ratios": heights}
    rows = {"nrows": len(heights), "squeeze": False, "gridspec_kw": ratios}
    with save(path, size, len(widths), **rows) as (figure, axes):
        grid = axes[0, 0].get_gridspec()
        for axis in axes[0]:
            axis.remove()
        _panel(figure.add_subplot(grid[0, :]), above, "column", "No correction")
        for axis, column, own, width in zip(axes[-1], several, below, widths, strict=False):
            _panel(axis, own, "correction", fill(f"Corrections of {column}", 9 * width))
        low = f"pass@1 below {COLLAPSED_PASS}, entropy below {COLLAPSED_ENTROPY}"
        lost = f"x: collapsed ({low}), and at which step"
        figure.suptitle(f"pass@1 after training: mean ± half of the 95 % CI; {lost}")


def _panel(axis: Any, table: pd.DataFrame, across: str, title: str) -> None:
    order: Any = {"index": table["method"].unique(), "columns": table[across].unique()}
    means = table.pivot(index="method", columns=across, values="pass@1").reindex(**order)
    axis.imshow(means, cmap="cividis", vmin=SCALE[0], vmax=SCALE[1], aspect="auto")
    for _, square in table.iterrows():
        color = "white" if square["pass@1"] < sum(SCALE) / 2 else "black"
        x = means.columns.get_loc(square[across])
        y = means.index.get_loc(square["method"])
        text = {"color": color, "ha": "center", "va": "center", "fontsize": 7}
        axis.text(x, y, caption(square), linespacing=1.25, **text)
    # a column's label is over the mean |log-ratio| of sampler and trainer that its runs measured
    nats = table.groupby(across, sort=False)["mismatch"].mean()
    labels = [
        f"{fill(name, 9)}\n" + (f"{mean:.3f} nats" if pd.notna(mean) else "")
        for name, mean in nats.items()
    ]
    axis.set_xticks(range(len(labels)), labels)
    axis.set_yticks(range(len(means)), means.index)
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    axis.set_title(title)


def caption(square: pd.Series) -> str:
    """Such as `0.38 ±0.02` over `n 5`, or over `x 2 of 5: 17`, the median step."""
    half = (square["high"] - square["low"]) / 2
    interval = f" ±{half:.2f}" if square["runs"] > 1 else ""
    at = f": {square[STEP]:.0f}" if pd.notna(square[STEP]) else ""
    lost = f"x {square['collapsed']} of {square['runs']}{at}"
    counted = lost if square["collapsed"] else f"n {square['runs']}"
    return f"{square['pass@1']:.2f}{interval}\n{counted}"
