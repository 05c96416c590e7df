"""A number over seeds: its mean, and Student's interval of it."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

LEVEL = 0.975  # two-sided: 95 %
Array = NDArray[np.float64]


def t_interval(values: ArrayLike) -> tuple[Array, Array, Array]:
    """Mean over the first axis, and the ends of its 95 % t interval; of two seeds or more."""
    rows = np.asarray(values, dtype=float)
    n = len(rows)
    assert n > 1
    mean = rows.mean(axis=0)
    half = stdtrit(n - 1, LEVEL) * rows.std(axis=0, ddof=1) / sqrt(n)
    return mean, mean - half, mean + half


def interval(values: Sequence[float]) -> dict[str, Any] | None:
    """value, low, high of numbers over seeds; equal ones, or one, have no interval."""
    if not values:
        return None
    if min(values) == max(values):  # no spread, from which that of other seeds could be judged
        return {"value": values[0], "low": None, "high": None}
    value, low, high = t_interval(values)
    return {"value": float(value), "low": float(low), "high": float(high)}
