"""How well a prediction meets a record, and parameters that are solved for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

Array = np.ndarray
CAP = 30.0  # standard deviations: a token further off counts as much
ROUNDING = 2e-6  # nats, of float32


class Fit(NamedTuple):
    """predicted [N], nats; NaN where nothing is predicted. parameters: by the cause's name."""

    predicted: Array
    parameters: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Record:
    """One side's log-probs of N tokens. value [N]: nats; row, place, token [N].

    scale [N]: one standard deviation of rounding, nats.
    """

    value: Array
    scale: Array
    row: Array
    place: Array
    token: Array

    def off(self, predicted: Array) -> Array:
        """|record - prediction| [N], standard deviations."""
        return np.minimum(np.abs(self.value - predicted) / self.scale, CAP)

    def level(self, predicted: Array) -> float:
        """The mean of `off`; what is not predicted counts as far off."""
        return float(np.nan_to_num(self.off(predicted), nan=CAP).mean())

    def levels(self, predicted: Array) -> Array:
        """The same of each response [R]."""
        off = np.nan_to_num(self.off(predicted), nan=CAP)
        return np.bincount(self.row, off) / np.bincount(self.row)

    def only(self, where: Array) -> Record:
        """Those tokens; `where` [N] bool or indices."""
        columns = ("value", "scale", "row", "place", "token")
        return replace(self, **{name: getattr(self, name)[where] for name in columns})


def crossing(first: Array, then: Array) -> int:
    """The place from which on the second is less off than the first [n]."""
    before = np.cumsum(np.r_[0.0, first])
    after = np.cumsum(np.r_[0.0, then[::-1]])[::-1]
    return int(np.argmin(before + after))


def minimize(loss: Callable[[float], float], grid: Sequence[float]) -> float:
    """Where the loss is least: the best of the grid, then between its neighbours."""
    if len(grid) == 1:
        return grid[0]
    values = [loss(x) for x in grid]
    i = int(np.argmin(values))
    bounds = (grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)])
    found: Any = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    return float(found.x) if found.fun <= values[i] else float(grid[i])


def error(record: Record, at: Callable[[float], Array], x: float) -> float:
    """The standard error of a parameter, from the residual and the prediction's slope."""
    step = 1e-3 * max(abs(x), 1e-3)
    slope = (at(x + step) - at(x - step)) / (2 * step) / record.scale
    residual = record.off(at(x))
    information = np.nansum(slope**2)
    return float(np.sqrt(np.nanmean(residual**2) / max(information, 1e-30)))
