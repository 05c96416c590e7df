"""What a study found: every arm's mean, and its difference to the baseline seed by seed."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit

from nemo_algos.lab.study.design import StudyCell, Study
from nemo_algos.lab.study.runner import Row

KS = (1, 2, 4, 8, 16, 32, 64)
METRICS = {
    **{f"pass@{k}": f"pass@{k}" for k in KS},
    **{f"UCC@{k}": f"UCC@{k}" for k in KS},
    "length": "length",
    "length of right": "length of right",
    "reward": "reward/mean",
    "entropy": "entropy/exact",
    "clipped": "clip/fraction",
    "cut, A > 0": "clip/positive_above",
    "cut, A < 0": "clip/negative_below",
    "ratio p99": "ratio/p99",
    "KL": "kl/old",
}
HEADINGS = ("regime", "arm", "metric", "n", "mean", "low", "high", "pairs")
HEADINGS += ("difference", "difference low", "difference high", "p")


class Estimate(NamedTuple):
    """A mean over n seeds, its 95 % interval (Student's t), two-sided p of a mean of 0; or nan."""

    n: int
    mean: float
    low: float
    high: float
    p: float

    @property
    def resolved(self) -> bool:
        """The interval leaves 0 out."""
        return self.low > 0 or self.high < 0


class ArmResult(NamedTuple):
    """One metric of one arm; difference: to the regime's baseline, over the seeds of both."""

    regime: str
    arm: str
    metric: str
    value: Estimate
    difference: Estimate


def estimate(values: Sequence[float]) -> Estimate:
    """mean +- t(.975, n-1) * sd / sqrt(n)."""
    n, mean = len(values), float(np.mean(values)) if values else float("nan")
    if n < 2:
        return Estimate(n, mean, *[float("nan")] * 3)
    error = float(np.std(values, ddof=1)) / n**0.5
    half = float(stdtrit(n - 1, 0.975)) * error
    p = 2 * float(stdtr(n - 1, -abs(mean) / error)) if error else float("nan")
    return Estimate(n, mean, mean - half, mean + half, p)


def summarise(study: Study, cells: Sequence[StudyCell], rows: dict[str, Row]) -> list[ArmResult]:
    """Of the runs that have finished; an arm without any is left out."""
    found: dict[tuple[str, str], dict[int, Row]] = defaultdict(dict)
    for cell in cells:
        if cell.run in rows:
            found[cell.regime, cell.arm][cell.seed] = rows[cell.run]
    out = []
    for (regime, arm), by_seed in found.items():
        baseline = found.get((regime, study.regimes[regime].baseline), {})
        for metric, column in METRICS.items():
            values, base = _values(by_seed, column), _values(baseline, column)
            pairs = [values[seed] - base[seed] for seed in values if seed in base]
            if values:
                value = estimate(list(values.values()))
                out.append(ArmResult(regime, arm, metric, value, estimate(pairs)))
    return out


def _values(by_seed: dict[int, Row], column: str) -> dict[int, float]:
    return {s: float(row[column]) for s, row in by_seed.items() if column in row}


def table(results: Sequence[ArmResult]) -> list[dict[str, object]]:
    """A row per result."""
    rows = []
    for r in results:
        value, difference = ([f"{x:.6g}" for x in e] for e in (r.value[1:4], r.difference[1:]))
        row = (*r[:3], r.value.n, *value, r.difference.n, *difference)
        rows.append(dict(zip(HEADINGS, row, strict=True)))
    return rows
