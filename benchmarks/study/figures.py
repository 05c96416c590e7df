"""Figures of a study: arms beside the baseline, over training steps, over k draws, and tuned."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from design import Regime, Study, StudyCell, in_files, tuning_of
from summary import KS, ArmResult, estimate
from tuning import candidates, label

from nemo_algos.jsonl import Metrics, read_lines
from nemo_algos.style import COLORS, save

SHOWN = ("pass@1", "pass@64", "UCC@64", "entropy")
STEP_METRICS = ("reward/mean", "entropy/exact", "clip/fraction", "kl/old")
TRADE = ("pass@1", "UCC@64")
SMOOTH = 5  # steps that a point is the mean of
COLOR, BASELINE = COLORS[0], COLORS[-1]
LINES = [{"color": c, "linestyle": style} for style, c in product(("-", "--"), COLORS[:-1])]
BESIDE: Any = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5)}  # a legend
Means = dict[tuple[str, str], float]  # by arm and metric


def draw(study: Study, results: Sequence[ArmResult], folder: Path) -> None:
    """figures/REGIME.png: every arm's mean and interval, the baseline's mean as a line."""
    for name, regime in study.regimes.items():
        if rows := [r for r in results if r.regime == name]:
            _regime(rows, regime, folder / "figures" / f"{name}.png")


def _regime(results: Sequence[ArmResult], regime: Regime, path: Path) -> None:
    arms = list(dict.fromkeys(r.arm for r in results))
    size = (3.2 * len(SHOWN), 1.2 + 0.32 * len(arms))
    with save(path, size, len(SHOWN), sharey=True, dpi=110) as (figure, axes):
        for axis, metric in zip(axes, SHOWN, strict=True):
            _panel(axis, {r.arm: r for r in results if r.metric == metric}, arms, regime.baseline)
            axis.set_title(metric)
        axes[0].set_yticks(range(len(arms)), arms)
        axes[0].invert_yaxis()
        n = max(r.value.n for r in results)
        filled = f"filled: the difference from {regime.baseline}, paired by seed, excludes 0"
        title = f"{regime.title or path.stem}: mean and 95 % CI, {n} seeds"
        figure.suptitle(f"{title}; {filled}")


def _panel(axis: Any, found: dict[str, ArmResult], arms: Sequence[str], baseline: str) -> None:
    """A point per arm, filled where the paired difference to the baseline leaves 0 out."""
    for y, arm in enumerate(arms):
        if arm in found:
            value, resolved = found[arm].value, found[arm].difference.resolved
            axis.plot([value.low, value.high], [y, y], color=COLOR, linewidth=1.4)
            axis.plot(value.mean, y, "o", color=COLOR, mfc=COLOR if resolved else "white")
    if baseline in found:
        axis.axvline(found[baseline].value.mean, color=BASELINE, linewidth=0.9, linestyle=":")
    axis.grid(visible=False, axis="y")


def draw_steps(study: Study, cells: Sequence[StudyCell], folder: Path) -> None:
    """figures/REGIME/ARM.png: metrics of each step, mean and 95 % interval; none of a tuning."""
    regimes = {n: r for n, r in study.regimes.items() if tuning_of("") not in n}
    for name, regime in regimes.items():
        arms: dict[str, list[list[Any]]] = {arm: [] for arm in regime.arms}
        for cell in (cell for cell in cells if cell.regime == name):
            if (raw := folder / "raw" / f"{cell.run}.jsonl").exists():
                arms[cell.arm].append(list(read_lines(raw, Metrics)))
        base = arms.pop(regime.baseline)
        for arm, series in arms.items():
            if series and base:
                path = folder / "figures" / name / f"{in_files(arm)}.png"
                _steps({regime.baseline: base, arm: series}, regime.title or name, path)


def _steps(arms: dict[str, list[list[Any]]], title: str, path: Path) -> None:
    with save(path, (13, 2.9), len(STEP_METRICS)) as (figure, axes):
        for axis, metric in zip(axes, STEP_METRICS, strict=True):
            for (arm, runs), color in zip(arms.items(), (BASELINE, COLOR), strict=True):
                _band(axis, [[s.get(metric, np.nan) for s in run] for run in runs], color, arm)
            axis.set(title=metric, xlabel="step")
        axes[0].legend()
        seeds = min(map(len, arms.values()))
        figure.suptitle(f"{title}: mean and 95 % CI over {seeds} seeds")


def _band(axis: Any, runs: list[list[float]], color: str, label: str) -> None:
    """Where every seed has the step: a run that broke off ends the line."""
    length = min(map(len, runs)) // SMOOTH * SMOOTH
    values = np.array([run[:length] for run in runs]).reshape(len(runs), -1, SMOOTH).mean(-1)
    points = [estimate(column) for column in values.T.tolist()]
    x = (np.arange(len(points)) + 0.5) * SMOOTH
    mean, low, high = ([getattr(p, k) for p in points] for k in ("mean", "low", "high"))
    axis.plot(x, mean, color=color, label=label)
    axis.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)


def _means(results: Sequence[ArmResult], regime: str) -> Means:
    return {(r.arm, r.metric): r.value.mean for r in results if r.regime == regime}


def draw_draws(study: Study, results: Sequence[ArmResult], folder: Path) -> None:
    """figures/REGIME_draws.png: pass@k and UCC@k over k, a line per arm, where these are few."""
    for name, regime in study.regimes.items():
        means = _means(results, name)
        if not 0 < len({arm for arm, _ in means} - {regime.baseline}) <= len(LINES):
            continue
        with save(folder / "figures" / f"{name}_draws.png", (11, 3.8), 2) as (figure, axes):
            for axis, metric in zip(axes, ("pass", "UCC"), strict=True):
                _over_k(axis, means, metric, regime.baseline)
            axes[1].legend(**BESIDE)
            figure.suptitle(f"{regime.title or name}: held-out puzzles, mean over the seeds")


def _over_k(axis: Any, means: Means, metric: str, baseline: str) -> None:
    """The baseline a broad grey line, the others beside it."""
    others = [arm for arm in dict.fromkeys(arm for arm, _ in means) if arm != baseline]
    styles = dict(zip(others, LINES, strict=False))
    broad = {baseline: {"color": BASELINE, "linewidth": 4, "alpha": 0.5}}
    for arm, style in (broad | styles).items():
        ks = [k for k in KS if (arm, f"{metric}@{k}") in means]
        values = [means[arm, f"{metric}@{k}"] for k in ks]
        axis.plot(ks, values, marker="o", markersize=3, label=arm, **style)
    axis.set_xscale("log", base=2)
    axis.set_xticks(KS, [str(k) for k in KS])
    axis.set(title=f"{metric}@k", xlabel="k")


def draw_tradeoffs(study: Study, results: Sequence[ArmResult], folder: Path) -> None:
    """figures/REGIME_tradeoff.png of every tuning: pass@1 against UCC@64, a line of values per arm.

    Slower training keeps more solutions: who is off the line that the others' values draw?
    """
    for name, regime in study.regimes.items():
        if regime.tune:
            sweep = tuning_of(name)
            with save(folder / "figures" / f"{sweep}_tradeoff.png", (7.5, 4.4)) as (figure, axis):
                for style, arm in zip(LINES, regime.arms, strict=False):
                    points = [label(arm, c) for c in candidates(regime.tune, arm)]
                    _tradeoff(axis, _means(results, sweep), points, arm, style)
                axis.set(xlabel=TRADE[0], ylabel=TRADE[1])
                axis.legend(**BESIDE)
                key = ", ".join(k.split(".")[-1] for k in regime.tune.grid)
                title = f"{regime.title or name}: one point per {key}, the first is hollow"
                figure.suptitle(title)


def _tradeoff(axis: Any, means: Means, points: Sequence[str], arm: str, style: Any) -> None:
    there = [x for x in points if all((x, metric) in means for metric in TRADE)]
    x, y = ([means[point, metric] for point in there] for metric in TRADE)
    axis.plot(x, y, marker="o", markersize=4, label=arm, **style)
    axis.plot(x[:1], y[:1], "o", color=style["color"], markersize=7, markerfacecolor="white")
