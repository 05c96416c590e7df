"""Effect sizes and p-values; responses are the independent units, tokens of one are not."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from scipy.special import gammaln

Array = np.ndarray


class Effect(NamedTuple):
    """A size, with its sign, and the probability of one as large where there is none."""

    size: float
    p: float


NONE = Effect(0.0, 1.0)


def explained(values: Array, group: Array) -> Effect:
    """The share of the variance that lies between groups, without what chance gives; F test."""
    _, first, group = np.unique(group, return_index=True, return_inverse=True)
    count = np.bincount(group)
    n, k = len(values), len(count)
    total = float(((values - values.mean()) ** 2).sum()) if n else 0.0
    if k < 2 or n <= k or total == 0:
        return NONE
    within = float(((values - (np.bincount(group, values) / count)[group]) ** 2).sum())
    if within == 0:
        return Effect(1.0, _of_one_value_each(values, values[first]))
    f = ((total - within) / (k - 1)) / (within / (n - k))
    return Effect(1 - (within / (n - k)) / (total / (n - 1)), float(stats.f.sf(f, k - 1, n - k)))


def _of_one_value_each(values: Array, groups: Array) -> float:
    """The chance that values [n] fall as [k] groups of one value each; F would call it 0.

    Of groups of one it is large: they cannot but have one.
    """
    ways = [_orders(np.unique(x, return_counts=True)[1]) for x in (groups, values)]
    return float(np.exp(min(0.0, ways[0] - ways[1])))


def _orders(counts: Array) -> float:
    """Log of in how many orders things stand, of which so many are alike."""
    return float(gammaln(counts.sum() + 1) - gammaln(counts + 1).sum())


def correlation(x: Array, y: Array) -> Effect:
    """Spearman's, over the pairs without NaN."""
    both = ~(np.isnan(x) | np.isnan(y))
    x, y = x[both], y[both]
    if len(x) < 5 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return NONE
    found: Any = stats.spearmanr(x, y)
    return Effect(float(found.statistic), float(found.pvalue))


def difference(x: Array, y: Array) -> Effect:
    """Of the medians; Mann and Whitney's test."""
    if len(x) < 5 or len(y) < 5:
        return NONE
    found: Any = stats.mannwhitneyu(x, y)
    return Effect(float(np.median(x) - np.median(y)), float(found.pvalue))


def means(values: Array, group: Array, groups: int) -> Array:
    """Of each of so many groups; NaN of an empty one."""
    count, total = (np.bincount(group, x, minlength=groups) for x in (None, values))
    return np.divide(total, count, out=np.full(groups, np.nan), where=count > 0)


def mean(values: Array) -> Effect:
    """The mean over responses, and the t test of its being 0."""
    values = values[~np.isnan(values)]
    if len(values) < 3 or not values.any():
        return NONE
    if np.ptp(values) < 1e-9 * np.abs(values).max():  # all the same: no spread to compare it with
        return Effect(float(values.mean()), 0.0)
    found: Any = stats.ttest_1samp(values, 0.0)
    return Effect(float(values.mean()), float(found.pvalue))


def split(values: Array) -> tuple[float, float]:
    """Where two populations part best (Otsu), and the share of the variance that lies between."""
    x = np.sort(values)
    n, total = len(x), float(((x - x.mean()) ** 2).sum()) if len(x) else 0.0
    if n < 3 or total == 0:
        return float("nan"), 0.0
    left = np.arange(1, n)
    sums = x.cumsum()[:-1]
    between = left * (n - left) / n * (sums / left - (x.sum() - sums) / (n - left)) ** 2
    i = int(between.argmax())
    return float((x[i] + x[i + 1]) / 2), float(between[i] / total)
