"""Runs compared at equal reward: what each has where its path first reaches a level of pass@1.

A method that learns more slowly keeps more entropy and pass@k at any given step, whatever its loss.
The level of a taught model lies midway between its pass@1 and what the baseline ends with, on
average over its runs from that model. Between two evaluations the path is a straight line.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nemo_algos.jsonl import read_lines

KEPT = ("pass@16", "UCC@16", "entropy")
AT = "{} at equal reward"
REACHED = "reached equal reward"
STEPS = "steps to equal reward"
COLUMNS = ["run", "step", "pass@1", *KEPT]


def read_paths(folder: Path, runs: Sequence[str]) -> pd.DataFrame:
    """The evaluations of runs on their way; from raw/, else from paths.csv, which is kept."""
    file = folder / "paths.csv"
    found = [point for run in runs for point in read_path(folder, run)]
    if file.exists():
        kept = pd.read_csv(file, dtype={"run": str})
        new = {point["run"] for point in found}
        found = kept[~kept["run"].isin(new)].to_dict("records") + found
    paths = pd.DataFrame(found, columns=COLUMNS)
    paths.to_csv(file, index=False)
    return paths


def read_path(folder: Path, run: str) -> list[dict[str, Any]]:
    """A run's evaluations on its way, with the entropy of that step's rollouts; or none."""
    points = list(read_lines(folder / "raw" / f"{run}.path.jsonl"))
    steps = list(read_lines(folder / "raw" / f"{run}.jsonl"))
    if not steps:
        return []
    for point in points:
        point["run"] = run
        point["entropy"] = steps[min(int(point["step"]), len(steps) - 1)]["entropy/exact"]
    return points


def at_equal_reward(
    study: dict[str, Any], cells: pd.DataFrame, paths: pd.DataFrame
) -> pd.DataFrame:
    """What each cell has at the level of its base; the index is that of cells."""
    by_run = dict(tuple(paths.groupby("run")))
    levels = {
        name: levels_of(own[own["arm"] == study["regimes"][name]["baseline"]], by_run)
        for name, own in cells.groupby("regime")
    }
    rows = {}
    for cell in cells[cells["run"].isin(by_run)].itertuples():
        level = levels[cell.regime].get(cell.base)
        if level is not None:
            rows[cell.Index] = at_level(by_run[cell.run], level)
    return pd.DataFrame.from_dict(rows, orient="index")


def levels_of(baseline: pd.DataFrame, paths: dict[str, pd.DataFrame]) -> dict[int, float]:
    """The level of each base from which the baseline learns."""
    levels = {}
    for base, cells in baseline.groupby("base"):
        passed = [paths[run]["pass@1"] for run in cells["run"] if run in paths]
        if passed:
            first = passed[0].iloc[0]
            last = np.mean([path.iloc[-1] for path in passed])
            if last > first:
                levels[base] = (first + last) / 2
    return levels


def at_level(path: pd.DataFrame, level: float) -> dict[str, float]:
    """The metrics where pass@1 first is `level`; REACHED 0.0 alone where it never is."""
    passed = path["pass@1"].to_numpy()
    reached = np.flatnonzero(passed >= level)
    if not len(reached):
        return {REACHED: 0.0}
    after = reached[0]
    ends = [max(after - 1, 0), after]

    def between(name: str) -> float:
        return float(np.interp(level, passed[ends], path[name].to_numpy()[ends]))

    kept = {AT.format(name): between(name) for name in KEPT}
    return {REACHED: 1.0, STEPS: between("step"), **kept}
