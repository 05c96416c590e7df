"""Figures of a study: over training steps, over k draws, of tuning, and what is confirmed."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from summary import KS, resolved

from nemo_algos.algorithms.core import dual
from nemo_algos.algorithms.core.groups import Groups
from nemo_algos.jsonl import Metrics, read_lines
from nemo_algos.style import COLORS, save

STEP_METRICS = ("reward/mean", "entropy/exact", "clip/fraction", "kl/old")
TRADE = ("pass@1", "UCC@64")
SMOOTH = 5  # steps that a point is the mean of
COLOR, BASELINE = COLORS[0], COLORS[-1]
LINES = [{"color": c, "linestyle": style} for style, c in product(("-", "--"), COLORS[:-1])]
BESIDE: Any = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5)}  # a legend
DELTAS = (0.001, 0.01, 0.1)
MAX_KL_FRACTION = 0.95  # QUATRO's default


def draw_differences(study: dict[str, Any], summary: pd.DataFrame, folder: Path) -> None:
    """figures/differences.png, where the study has `confirm`: a panel per regime and metric."""
    fixed = [name for name, regime in study["regimes"].items() if not regime["exploratory"]]
    found = summary[summary["regime"].isin(fixed)]
    if not study["confirm"] or found.empty:
        return
    panels = list(product(found["regime"].unique(), study["confirm"]["metrics"]))
    arms = list(dict.fromkeys(a for name in fixed for a in study["regimes"][name]["arms"]))
    size = (13, 0.3 * len(arms) + 1.2)
    path = folder / "figures" / "differences.png"
    with save(path, size, len(panels), squeeze=False, sharey=True, dpi=110) as (figure, axes):
        for axis, (name, metric) in zip(axes[0], panels, strict=True):
            _differences(axis, found.query("regime == @name and metric == @metric"), arms)
            axis.set_title(f"{name}: {metric}")
        axes[0, 0].set_yticks(range(len(arms)), arms)
        axes[0, 0].invert_yaxis()
        figure.suptitle("Difference to the baseline, mean and 95 % CI; filled: it excludes 0")


def _differences(axis: Any, rows: pd.DataFrame, arms: list[str]) -> None:
    """A point per arm; a square where Holm's p is below .05."""
    filled = resolved(rows)
    for index, row in rows[rows["pairs"] > 1].iterrows():
        y = arms.index(row["arm"])
        mark = "s" if row["p Holm"] < 0.05 else "o"
        face = COLOR if filled[index] else "white"
        axis.plot([row["difference low"], row["difference high"]], [y, y], color=COLOR, lw=1.4)
        axis.plot(row["difference"], y, mark, color=COLOR, mfc=face)
    axis.locator_params(axis="x", nbins=5)
    axis.axvline(0, color=BASELINE, linewidth=0.9, linestyle=":")
    axis.grid(visible=False, axis="y")


def draw_steps(study: dict[str, Any], cells: pd.DataFrame, folder: Path) -> None:
    """figures/REGIME/ARM.png: metrics of each step, mean and 95 % interval; none of a tuning."""
    for name, regime in study["regimes"].items():
        series: dict[str, list[list[Any]]] = {arm: [] for arm in regime["arms"]}
        for cell in cells[cells["regime"] == name].itertuples() if "_tuning" not in name else ():
            raw = folder / "raw" / f"{cell.run}.jsonl"
            if raw.exists():
                series[cell.arm].append(list(read_lines(raw, Metrics)))
        base = series.pop(regime["baseline"])
        for arm, runs in series.items():
            if runs and base:
                file = f"{arm.lower().replace(' ', '_').replace('-', '_')}.png"
                path = folder / "figures" / name / file
                _steps({regime["baseline"]: base, arm: runs}, regime["title"] or name, path)


def _steps(arms: dict[str, list[list[Any]]], title: str, path: Path) -> None:
    with save(path, (6.5, 5.2), 2, nrows=2) as (figure, axes):
        for axis, metric in zip(axes.flat, STEP_METRICS, strict=True):
            for (arm, runs), color in zip(arms.items(), (BASELINE, COLOR), strict=True):
                _band(axis, [[s.get(metric, np.nan) for s in run] for run in runs], color, arm)
            axis.set(title=metric, xlabel="step")
        axes.flat[0].legend()
        seeds = min(map(len, arms.values()))
        figure.suptitle(f"{title}: mean and 95 % CI over {seeds} seeds")


def _band(axis: Any, runs: list[list[float]], color: str, label: str) -> None:
    """Where every seed has the step: a run that broke off ends the line."""
    length = min(map(len, runs)) // SMOOTH * SMOOTH
    values = np.array([run[:length] for run in runs]).reshape(len(runs), -1, SMOOTH).mean(-1)
    mean = values.mean(0)
    x = (np.arange(len(mean)) + 0.5) * SMOOTH
    axis.plot(x, mean, color=color, label=label)
    if len(runs) > 1:
        half = stats.t.ppf(0.975, len(runs) - 1) * stats.sem(values)
        axis.fill_between(x, mean - half, mean + half, color=color, alpha=0.2, linewidth=0)


def draw_draws(study: dict[str, Any], summary: pd.DataFrame, folder: Path) -> None:
    """figures/REGIME_draws.png: pass@k and UCC@k over k, a line per arm, where these are few."""
    for name, own in summary.groupby("regime", sort=False):
        regime = study["regimes"][name]
        baseline = regime["baseline"]
        means = own.pivot(index="arm", columns="metric", values="mean")
        others = [arm for arm in own["arm"].unique() if arm != baseline]
        ks = [k for k in KS if f"pass@{k}" in means and f"UCC@{k}" in means]
        if not 0 < len(others) <= len(LINES):
            continue
        with save(folder / "figures" / f"{name}_draws.png", (11, 3.8), 2) as (figure, axes):
            for axis, metric in zip(axes, ("pass", "UCC"), strict=True):
                columns = [f"{metric}@{k}" for k in ks]
                if baseline in means.index:
                    broad: Any = {"color": BASELINE, "linewidth": 4, "alpha": 0.5}
                    axis.plot(ks, means.loc[baseline, columns], label=baseline, **broad)
                for arm, style in zip(others, LINES, strict=False):
                    axis.plot(ks, means.loc[arm, columns], marker="o", ms=3, label=arm, **style)
                axis.set_xscale("log", base=2)
                axis.set_xticks(ks, [str(k) for k in ks])
                axis.set(title=f"{metric}@k", xlabel="k")
            axes[1].legend(**BESIDE)
            title = regime["title"] or name
            figure.suptitle(f"{title}: held-out puzzles, mean over the seeds")


def draw_tradeoffs(study: dict[str, Any], summary: pd.DataFrame, folder: Path) -> None:
    """figures/REGIME_tradeoff.png of every tuning: pass@1 against UCC@64, a line of values per arm.

    Slower training keeps more solutions: who is off the line that the others' values draw?
    """
    for name in study["regimes"]:
        rows = summary[(summary["regime"] == f"{name}_tuning") & summary["metric"].isin(TRADE)]
        if rows["metric"].nunique() < len(TRADE):
            continue
        means = rows.pivot(index="arm", columns="metric", values="mean")
        with save(folder / "figures" / f"{name}_tuning_tradeoff.png", (7.5, 4.4)) as (figure, axis):
            for arm, style in zip(study["regimes"][name]["arms"], LINES, strict=False):
                labels = [x for x in rows["arm"].unique() if x.startswith(f"{arm} ")]
                points = means.loc[labels, list(TRADE)].dropna()
                first = points.iloc[:1]
                color = style["color"]
                axis.plot(*points.T.to_numpy(), marker="o", markersize=4, label=arm, **style)
                axis.plot(*first.T.to_numpy(), "o", color=color, markersize=7, mfc="white")
            axis.set(xlabel=TRADE[0], ylabel=TRADE[1])
            axis.legend(**BESIDE)
            title = study["regimes"][name]["title"] or name
            figure.suptitle(f"{title}: one point per tuned value, the first is hollow")


def right_advantages(size: int, delta: float) -> list[float]:
    """QUATRO's A of a right response (rewards 0, 1) where 1 to size - 1 of a group are right."""
    right = torch.arange(1, size)
    rewards = (torch.arange(size) < right[:, None]).double().flatten()
    groups = Groups.of(torch.arange(size - 1).repeat_interleave(size))
    radius = dual.kl_radius(rewards, groups, delta, MAX_KL_FRACTION)
    return dual.solve(rewards, groups, radius)[0][::size].tolist()


def draw_advantages(path: Path, size: int = 8) -> None:
    """QUATRO's figure 2: a line per delta."""
    with save(path, (5.5, 3.4)) as (_, axis):
        for delta in DELTAS:
            axis.plot(range(1, size), right_advantages(size, delta), "o-", label=f"delta {delta}")
        axis.set(xlabel=f"right responses of {size}", ylabel="A of a right response", yscale="log")
        axis.legend()
