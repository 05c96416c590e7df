"""What a study found: every arm's mean, and its difference to the baseline, pair by pair.

A pair is a seed. Where a regime has several taught models it is a model, with the mean over its
seeds: the intervals are then over models.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import isnan
from typing import NamedTuple

import numpy as np
from design import Study, StudyCell
from equal_reward import AT, KEPT, REACHED, STEPS
from runner import Row
from scipy.special import stdtr, stdtrit

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
    REACHED: REACHED,
    STEPS: STEPS,
    **{AT.format(kept): AT.format(kept) for kept in KEPT},
}
POWER = 0.8  # of the detectable difference
HEADINGS = ("regime", "arm", "metric", "n", "mean", "low", "high", "pairs")
HEADINGS += ("difference", "difference low", "difference high", "p", "detectable", "p Holm")


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

    @property
    def detectable(self) -> float:
        """The mean that a study of this size and spread would resolve in 80 % of the cases."""
        if self.n < 2:
            return float("nan")
        quantile = float(stdtrit(self.n - 1, 0.975))
        error = (self.high - self.mean) / quantile
        return (quantile + float(stdtrit(self.n - 1, POWER))) * error


class ArmResult(NamedTuple):
    """One metric of one arm; difference: to the regime's baseline, over the pairs of both.

    adjusted: Holm's p over all results that the study has named beforehand; nan for the others.
    """

    regime: str
    arm: str
    metric: str
    value: Estimate
    difference: Estimate
    adjusted: float = float("nan")


def estimate(values: Sequence[float]) -> Estimate:
    """mean +- t(.975, n-1) * sd / sqrt(n)."""
    n, mean = len(values), float(np.mean(values)) if values else float("nan")
    if n < 2:
        return Estimate(n, mean, *[float("nan")] * 3)
    error = float(np.std(values, ddof=1)) / n**0.5
    half = float(stdtrit(n - 1, 0.975)) * error
    p = 2 * float(stdtr(n - 1, -abs(mean) / error)) if error else float("nan")
    return Estimate(n, mean, mean - half, mean + half, p)


def summarise(
    study: Study,
    cells: Sequence[StudyCell],
    rows: dict[str, Row],
    equal: Mapping[StudyCell, Row] | None = None,
) -> list[ArmResult]:
    """Of the runs that have finished; an arm without any is left out. equal: equal_reward's."""
    found: dict[tuple[str, str], dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        if cell.run in rows:
            pair = cell.base if study.regimes[cell.regime].bases else cell.seed
            row = rows[cell.run] | (equal or {}).get(cell, {})
            found[cell.regime, cell.arm][pair].append(row)
    out = []
    for (regime, arm), of_pairs in found.items():
        baseline = found.get((regime, study.regimes[regime].baseline), {})
        for metric, column in METRICS.items():
            values, base = _values(of_pairs, column), _values(baseline, column)
            pairs = [values[pair] - base[pair] for pair in values if pair in base]
            if values:
                value = estimate(list(values.values()))
                out.append(ArmResult(regime, arm, metric, value, estimate(pairs)))
    return _adjusted(study, out)


def _values(of_pairs: Mapping[int, list[Row]], column: str) -> dict[int, float]:
    numbers = {p: [float(r[column]) for r in rows if column in r] for p, rows in of_pairs.items()}
    return {pair: float(np.mean(found)) for pair, found in numbers.items() if found}


def _adjusted(study: Study, results: list[ArmResult]) -> list[ArmResult]:
    """With Holm's p, min over the larger ones of (m - rank) p; of those that were named beforehand.

    A difference that cannot be had (no pair, no spread) counts as p = 1.
    """
    confirm = study.confirm
    named = [
        i
        for i, r in enumerate(results)
        if confirm
        and not study.regimes[r.regime].exploratory
        and r.arm in confirm.arms
        and r.metric in confirm.metrics
    ]
    p = {i: 1.0 if isnan(results[i].difference.p) else results[i].difference.p for i in named}
    adjusted, highest = dict[int, float](), 0.0
    for rank, i in enumerate(sorted(named, key=p.__getitem__)):
        highest = max(highest, min(1.0, (len(named) - rank) * p[i]))
        adjusted[i] = highest
    return [r._replace(adjusted=adjusted.get(i, r.adjusted)) for i, r in enumerate(results)]


def table(results: Sequence[ArmResult]) -> list[dict[str, object]]:
    """A row per result."""
    rows = []
    for r in results:
        value, difference = ([f"{x:.6g}" for x in e] for e in (r.value[1:4], r.difference[1:]))
        more = (f"{x:.6g}" for x in (r.difference.detectable, r.adjusted))
        row = (*r[:3], r.value.n, *value, r.difference.n, *difference, *more)
        rows.append(dict(zip(HEADINGS, row, strict=True)))
    return rows
