"""How far a mean over problems is to be trusted: percentile bootstrap over problems."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Bootstrap:
    """One set of resamples of the problems, for every number of an evaluation: they vary together.

    The resamples go with the problems' ids [P], not with their order.
    """

    def __init__(self, ids: Sequence[str], resamples: int, seed: int):
        problems = len(ids)
        chances = np.full(problems, 1 / problems)
        draws = np.random.default_rng(seed).multinomial(problems, chances, resamples)
        rank = np.argsort(np.argsort(ids))
        self._times = draws[:, rank].astype(np.float64)  # [R, P]: how often each is drawn

    def mean(self, values: Floats) -> tuple[Floats, Floats, Floats]:
        """The mean over problems and the ends of its 95 % interval. [P, M] -> [M] each.

        A nan is left out, of every resample too. The ends are nan where fewer than 2 are left.
        """
        known = np.isfinite(values)
        filled = np.where(known, values, 0.0)
        with np.errstate(invalid="ignore"):
            mean = filled.sum(0) / known.sum(0)
            means = (self._times @ filled) / (self._times @ known)
        ends = np.full((2, len(mean)), np.nan)
        for column in np.flatnonzero(known.sum(0) >= 2):
            ends[:, column] = np.nanpercentile(means[:, column], [2.5, 97.5])
        return mean, ends[0], ends[1]

    def interval(self, values: Floats) -> dict[str, float | None]:
        """[P] -> {"value", "low", "high"}; None where there is none."""
        mean, low, high = self.mean(values[:, None])
        return {"value": or_none(mean)[0], "low": or_none(low)[0], "high": or_none(high)[0]}

    def curve(self, values: Floats, ks: Sequence[int]) -> dict[str, list[Any]]:
        """[P, K] -> {"k", "value", "low", "high"}, lists of K."""
        mean, low, high = self.mean(values)
        return {"k": list(ks), "value": or_none(mean), "low": or_none(low), "high": or_none(high)}


def or_none(values: Floats) -> list[float | None]:
    """nan is no JSON."""
    return [float(v) if np.isfinite(v) else None for v in values]
