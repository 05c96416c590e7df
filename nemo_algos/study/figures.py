"""A figure per regime: every arm's mean and interval, the baseline's as a line."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nemo_algos.study.design import Study
from nemo_algos.study.summary import Result

SHOWN = ("pass@1", "pass@64", "UCC@64", "entropy")
COLOR, BASELINE = "#0072B2", "#888888"


@contextmanager
def drawn(path: Path, size: tuple[float, float], columns: int = 1, **options: Any) -> Iterator[Any]:
    """(figure, axes) to draw on, saved as this file; its folder is made."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=size, constrained_layout=True, **options)
    yield figure, axes
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def draw(study: Study, results: Sequence[Result], folder: Path) -> list[Path]:
    """figures/REGIME.png of every regime that has results."""
    names = {r.regime for r in results}
    paths = {name: folder / "figures" / f"{name}.png" for name in study.regimes if name in names}
    for name, path in paths.items():
        _regime([r for r in results if r.regime == name], study.regimes[name].baseline, path)
    return list(paths.values())


def _regime(results: Sequence[Result], baseline: str, path: Path) -> None:
    arms = list(dict.fromkeys(r.arm for r in results))
    size = (3.2 * len(SHOWN), 1.2 + 0.32 * len(arms))
    with drawn(path, size, len(SHOWN), sharey=True, dpi=110) as (figure, axes):
        for axis, metric in zip(axes, SHOWN, strict=True):
            _panel(axis, {r.arm: r for r in results if r.metric == metric}, arms, baseline)
            axis.set_title(metric, fontsize=10)
        axes[0].set_yticks(range(len(arms)), arms)
        axes[0].invert_yaxis()
        n = max(r.value.n for r in results)
        filled = f"filled: the difference to {baseline}, paired by seed, leaves 0 out"
        figure.suptitle(f"{path.stem}: mean and 95 % interval, {n} seeds; {filled}", fontsize=10)


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
