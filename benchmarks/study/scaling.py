"""ScaleRL's curve (arXiv:2510.13786, eq. 1) through an arm's mean path: where it ends, how soon.

    R(C) = R_0 + (A - R_0) / (1 + (C_mid / C)^B)

R: pass@1, C: steps (ScaleRL's is compute), R_0: before the first step. A is the asymptote, B and
C_mid are the efficiency. A is read off only where the path bends: at its end it must have come
BENT of the way; else a steep line fits as well as a far asymptote.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from design import StudyCell
from runner import Row
from scipy.optimize import OptimizeWarning, curve_fit

BENT = 0.8


class Curve(NamedTuple):
    """asymptote: A; midpoint: C_mid in steps; exponent: B; share: of the way that the path went."""

    asymptote: float
    midpoint: float
    exponent: float
    share: float

    @property
    def bends(self) -> bool:
        """Whether the asymptote is more than an extrapolation."""
        return self.share >= BENT


def mean_path(cells: Sequence[StudyCell], paths: dict[str, list[Row]]) -> tuple[list, list]:
    """Steps, and pass@1 averaged over the runs that have been evaluated there."""
    found = defaultdict[float, list[float]](list)
    for cell in cells:
        for point in paths.get(cell.run, ()):
            found[float(point["step"])].append(float(point["pass@1"]))
    steps = sorted(found)
    return steps, [float(np.mean(found[step])) for step in steps]


def fit(steps: Sequence[float], passed: Sequence[float]) -> Curve | None:
    """Least squares; None with fewer than five points, or where no curve is found."""
    start, rest = passed[0] if passed else 0.0, np.asarray(steps[1:], float)
    if len(rest) < 4 or passed[-1] <= start:
        return None

    def curve(c: np.ndarray, asymptote: float, midpoint: float, exponent: float) -> np.ndarray:
        return start + (asymptote - start) / (1 + (midpoint / c) ** exponent)

    first = (passed[-1], float(np.median(rest)), 1.0)
    bounds = ([start, 1e-3, 0.2], [1.0, 100 * rest[-1], 10.0])
    try:
        (asymptote, midpoint, exponent), _ = curve_fit(
            curve, rest, passed[1:], first, bounds=bounds
        )
    except (RuntimeError, OptimizeWarning):
        return None
    share = (passed[-1] - start) / (asymptote - start) if asymptote > start else 0.0
    return Curve(float(asymptote), float(midpoint), float(exponent), float(share))
