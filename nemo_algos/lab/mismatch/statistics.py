"""Statistics of responses, which are the independent units; tokens of one are not."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

Array = np.ndarray


class Effect(NamedTuple):
    """A size, with its sign, and the probability of one as large where there is none."""

    size: float
    p: float


def correlation(x: Array, y: Array) -> Effect:
    """Spearman's, over the pairs without NaN."""
    both = ~(np.isnan(x) | np.isnan(y))
    x, y = x[both], y[both]
    if len(x) < 5 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Effect(0.0, 1.0)
    found: Any = stats.spearmanr(x, y)
    return Effect(float(found.statistic), float(found.pvalue))


def means(values: Array, group: Array, groups: int) -> Array:
    """Of each of so many groups; NaN of an empty one."""
    count, total = (np.bincount(group, x, minlength=groups) for x in (None, values))
    return np.divide(total, count, out=np.full(groups, np.nan), where=count > 0)
