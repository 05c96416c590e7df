"""The board: a row for each arm of each regime, as CSV.

Where an arm's mean path bends it has ScaleRL's curve (arXiv:2510.13786, eq. 1), which says where
it ends and how soon.

    R(C) = R_0 + (A - R_0) / (1 + (C_mid / C)^B)

R: pass@1, C: steps (ScaleRL's is compute), R_0: before the first step. A is the asymptote, B and
C_mid are the efficiency. A is read off only where the path bends: at its end it must have come
BENT of the way; else a steep line fits as well as a far asymptote.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from equal_reward import AT, REACHED, STEPS
from scipy.optimize import OptimizeWarning, curve_fit

BENT = 0.8
METRICS = ["pass@1", *(AT.format(kept) for kept in ("pass@16", "UCC@16", "entropy")), STEPS]
OF_DIFFERENCE = {  # a column of summary.csv -> its name on the board
    "difference": "difference",
    "difference low": "low",
    "difference high": "high",
    "p": "p",
    "detectable": "detectable",
    "p Holm": "p Holm",
}


def table(
    study: dict[str, Any], cells: pd.DataFrame, summary: pd.DataFrame, paths: pd.DataFrame
) -> pd.DataFrame:
    """A row per arm of the regimes that are not tuning and whose baseline has finished runs."""
    rows = []
    for (regime, arm), own in summary.groupby(["regime", "arm"], sort=False):
        written = study["regimes"][regime]
        finished = summary["regime"].eq(regime) & summary["arm"].eq(written["baseline"])
        if "_tuning" in regime or not finished.any():
            continue
        runs = cells.loc[cells["regime"].eq(regime) & cells["arm"].eq(arm), "run"]
        points = paths[paths["run"].isin(runs)].groupby("step")["pass@1"].mean()
        row = {"regime": regime, "arm": arm}
        row |= _numbers(own.set_index("metric"))
        row |= fit(points.index.to_numpy(), points.to_numpy())
        rows.append({**row, "settings": _settings(written["arms"][arm])})
    order = {name: i for i, name in enumerate(study["regimes"])}
    return pd.DataFrame(rows).sort_values("regime", key=lambda x: x.map(order), kind="stable")


def _numbers(of_metric: pd.DataFrame) -> dict[str, Any]:
    row = {}
    for metric in [*METRICS, REACHED]:
        if metric not in of_metric.index:
            continue
        found = of_metric.loc[metric]
        row |= {metric: found["mean"], f"{metric}, n": int(found["n"])}
        if metric != REACHED:
            row |= {f"{metric}, {name}": found[column] for column, name in OF_DIFFERENCE.items()}
    return row


def _settings(arm: dict[str, Any]) -> str:
    """What the arm sets beside its file."""
    keys = {key.rpartition(".")[2]: value for key, value in arm.items() if key != "config"}
    return ", ".join(f"{key}={value}" for key, value in keys.items())


def fit(steps: Sequence[float], passed: Sequence[float]) -> dict[str, Any]:
    """The curve by least squares; {} with fewer than five points, or where no curve is found.

    midpoint: C_mid in steps; exponent: B; share: of the way that the path went.
    """
    if len(steps) < 5 or passed[-1] <= passed[0]:
        return {}
    start = passed[0]
    rest = np.asarray(steps[1:], float)

    def curve(c: np.ndarray, asymptote: float, midpoint: float, exponent: float) -> np.ndarray:
        return start + (asymptote - start) / (1 + (midpoint / c) ** exponent)

    first = (passed[-1], float(np.median(rest)), 1.0)
    bounds = ([start, 1e-3, 0.2], [1.0, 100 * rest[-1], 10.0])
    try:
        found, _ = curve_fit(curve, rest, passed[1:], first, bounds=bounds)
    except (RuntimeError, OptimizeWarning):
        return {}
    asymptote, midpoint, exponent = map(float, found)
    share = float((passed[-1] - start) / (asymptote - start)) if asymptote > start else 0.0
    values = {"asymptote": asymptote, "midpoint": midpoint, "exponent": exponent, "share": share}
    return {**values, "bends": share >= BENT}
