"""A figure per regime: every arm's mean and interval, the baseline's as a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_algos.study.design import Study
from nemo_algos.study.summary import Result

SHOWN = ("pass@1", "pass@64", "UCC@64", "entropy")
COLOR, BASELINE = "#0072B2", "#888888"


def draw(study: Study, results: Sequence[Result], folder: Path) -> list[Path]:
    """figures/REGIME.png of every regime that has results."""
    import matplotlib

    matplotlib.use("Agg")
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    paths = []
    for name, regime in study.regimes.items():
        rows = [r for r in results if r.regime == name]
        if rows:
            path = folder / "figures" / f"{name}.png"
            _regime(rows, regime.baseline, name, path)
            paths.append(path)
    return paths


def _regime(results: Sequence[Result], baseline: str, name: str, path: Path) -> None:
    from matplotlib import pyplot as plt

    arms = list(dict.fromkeys(r.arm for r in results))
    size = (3.2 * len(SHOWN), 1.2 + 0.32 * len(arms))
    figure, axes = plt.subplots(1, len(SHOWN), figsize=size, sharey=True, constrained_layout=True)
    for axis, metric in zip(axes, SHOWN, strict=True):
        _panel(axis, {r.arm: r for r in results if r.metric == metric}, arms, baseline)
        axis.set_title(metric, fontsize=10)
    axes[0].set_yticks(range(len(arms)), arms)
    axes[0].invert_yaxis()
    n = max(r.value.n for r in results)
    filled = f"filled: the difference to {baseline}, paired by seed, leaves 0 out"
    figure.suptitle(f"{name}: mean and 95 % interval, {n} seeds; {filled}", fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(axis: Any, found: dict[str, Result], arms: Sequence[str], baseline: str) -> None:
    """A point per arm, filled where the paired difference to the baseline leaves 0 out."""
    for y, arm in enumerate(arms):
        if arm in found:
            value, resolved = found[arm].value, found[arm].difference.resolved
            axis.plot([value.low, value.high], [y, y], color=COLOR, linewidth=1.4)
            axis.plot(value.mean, y, "o", color=COLOR, mfc=COLOR if resolved else "white")
    if baseline in found:
        axis.axvline(found[baseline].value.mean, color=BASELINE, linewidth=0.9, linestyle=":")
    axis.grid(axis="x", alpha=0.3)
