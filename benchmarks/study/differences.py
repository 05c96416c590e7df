"""A figure of what a study has confirmed or not: its arms' differences to the baseline."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from design import Study
from summary import ArmResult

from nemo_algos.style import COLORS, save

COLOR, BASELINE = COLORS[0], COLORS[-1]


def draw(study: Study, results: Sequence[ArmResult], folder: Path) -> None:
    """figures/differences.png, where the study has `confirm`: a panel per regime and metric."""
    there = {r[:3]: r for r in results}
    regimes = [
        name
        for name, regime in study.regimes.items()
        if study.confirm and not regime.exploratory and (name, regime.baseline, "pass@1") in there
    ]
    panels = [(n, m) for n in regimes for m in (study.confirm.metrics if study.confirm else ())]
    if not panels:
        return
    arms = list(dict.fromkeys(a for n in regimes for a in study.regimes[n].arms))
    path, size = folder / "figures" / "differences.png", (13, 0.3 * len(arms) + 1.2)
    with save(path, size, len(panels), sharey=True, dpi=110) as (figure, axes):
        for axis, (name, metric) in zip(axes, panels, strict=True):
            _panel(axis, [there.get((name, arm, metric)) for arm in arms])
            axis.set_title(f"{name}: {metric}")
        axes[0].set_yticks(range(len(arms)), arms)
        axes[0].invert_yaxis()
        figure.suptitle("Difference to the baseline, mean and 95 % CI; filled: it excludes 0")


def _panel(axis: Any, results: Sequence[ArmResult | None]) -> None:
    """A point per arm; a square where Holm's p is below .05."""
    for y, result in enumerate(results):
        if result and result.difference.n > 1:
            gap, mark = result.difference, "s" if result.adjusted < 0.05 else "o"
            axis.plot([gap.low, gap.high], [y, y], color=COLOR, linewidth=1.4)
            axis.plot(gap.mean, y, mark, color=COLOR, mfc=COLOR if gap.resolved else "white")
    axis.locator_params(axis="x", nbins=5)
    axis.axvline(0, color=BASELINE, linewidth=0.9, linestyle=":")
    axis.grid(visible=False, axis="y")
