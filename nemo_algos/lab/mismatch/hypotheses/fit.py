"""How well a prediction meets a record, and parameters that are solved for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

Array = np.ndarray
CAP = 30.0  # standard deviations: a token further off counts as much
ROUNDING = 2e-6  # nats, of float32


class Fit(NamedTuple):
    """predicted [N], nats; parameters: by the cause's name."""

    predicted: Array
    parameters: dict[str, dict[str, Any]]


@dataclass(frozen=True, eq=False)
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
        """|record - prediction| [N], standard deviations; what is no number is far off."""
        off = np.abs(self.value - predicted) / self.scale
        return np.minimum(np.nan_to_num(off, nan=CAP), CAP)

    def level(self, predicted: Array) -> float:
        """The mean of `off`."""
        return float(self.off(predicted).mean())

    def levels(self, predicted: Array) -> Array:
        """The same of each response [R]."""
        return np.bincount(self.row, self.off(predicted)) / np.bincount(self.row)

    def best(self, fits: Sequence[Fit]) -> Fit:
        """The one of the least level; of two alike the first."""
        return min(fits, key=lambda fit: self.level(fit.predicted))

    def only(self, where: Array) -> Record:
        """Those tokens; `where` [N] bool or indices."""
        return Record(**{name: column[where] for name, column in vars(self).items()})


def crossing(first: Array, then: Array) -> int:
    """The place from which on the second is less off than the first [n]."""
    before = np.cumsum(np.r_[0.0, first])
    after = np.cumsum(np.r_[0.0, then[::-1]])[::-1]
    return int(np.argmin(before + after))


def minimize(loss: Callable[[float], float], grid: Array) -> float:
    """Where the loss is least: the best of the grid, then between its neighbours."""
    if len(grid) == 1:
        return float(grid[0])
    values = [loss(x) for x in grid]
    i = int(np.argmin(values))
    bounds = (grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)])
    found: Any = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    return float(found.x) if found.fun <= values[i] else float(grid[i])


def error(record: Record, at: Callable[[float], Array], x: float) -> float:
    """The standard error of a parameter, from the residual and the prediction's slope."""
    step = 1e-3 * max(abs(x), 1e-3)
    slope = (at(x + step) - at(x - step)) / (2 * step) / record.scale
    residual = (record.off(at(x)) ** 2).mean()
    return float(np.sqrt(residual / max(np.nansum(slope**2), 1e-30)))
