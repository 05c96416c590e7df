"""Runs compared at equal reward: what each has where its path first reaches a level of pass@1.

A method that learns more slowly keeps more entropy and pass@k at any given step, whatever its loss.
The level of a taught model lies midway between its pass@1 and what the baseline ends with, on
average over its runs from that model. Between two evaluations the path is a straight line.
"""

import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from design import Study, StudyCell
from runner import Row, write_table

from nemo_algos.jsonl import read_lines

KEPT = ("pass@16", "UCC@16", "entropy")
AT = "{} at equal reward"
REACHED, STEPS = "reached equal reward", "steps to equal reward"


def read_paths(folder: Path, runs: Sequence[str]) -> dict[str, list[Row]]:
    """The path of each run, from raw/, or without its files there from paths.csv, which is kept."""
    file = folder / "paths.csv"
    paths = _kept(file) if file.exists() else {}
    paths |= {run: path for run in runs if (path := read_path(folder, run))}
    names = ("step", "pass@1", *KEPT)
    points = [(run, point) for run, path in paths.items() for point in path]
    write_table(file, [{"run": run, **{n: point[n] for n in names}} for run, point in points])
    return paths


def _kept(file: Path) -> dict[str, list[Row]]:
    paths = defaultdict[str, list[Row]](list)
    with open(file, newline="") as lines:
        for row in csv.DictReader(lines):
            paths[row.pop("run")].append({name: float(value) for name, value in row.items()})
    return dict(paths)


def read_path(folder: Path, run: str) -> list[Row]:
    """The evaluations of a run on its way, with the entropy of that step's rollouts; or none."""
    points, steps = (
        list(read_lines(folder / "raw" / name)) for name in (f"{run}.path.jsonl", f"{run}.jsonl")
    )
    for point in points if steps else ():
        at = min(int(point["step"]), len(steps) - 1)
        point["entropy"] = steps[at]["entropy/exact"]
    return points if steps else []


def equal_reward(
    study: Study, cells: Sequence[StudyCell], paths: dict[str, list[Row]]
) -> dict[StudyCell, Row]:
    """Of each cell with a path, what it has at its base's level. paths: by run."""
    found = {}
    for name, regime in study.regimes.items():
        own = [c for c in cells if c.regime == name and paths.get(c.run)]
        levels = _levels([c for c in own if c.arm == regime.baseline], paths)
        found |= {c: at_level(paths[c.run], levels[c.base]) for c in own if c.base in levels}
    return found


def _levels(baseline: Sequence[StudyCell], paths: dict[str, list[Row]]) -> dict[int, float]:
    """By base: of those from which the baseline learns."""
    ends = defaultdict[int, list[tuple[float, float]]](list)
    for cell in baseline:
        path = paths[cell.run]
        ends[cell.base].append((float(path[0]["pass@1"]), float(path[-1]["pass@1"])))
    means = {base: (pairs[0][0], fmean(last for _, last in pairs)) for base, pairs in ends.items()}
    return {base: (first + last) / 2 for base, (first, last) in means.items() if last > first}


def at_level(path: list[Row], level: float) -> Row:
    """The metrics where pass@1 first is `level`; REACHED 0.0 alone where it never is."""
    passed = [float(p["pass@1"]) for p in path]
    after = next((i for i, value in enumerate(passed) if value >= level), None)
    if after is None:
        return {REACHED: 0.0}
    before = max(after - 1, 0)
    rise = passed[after] - passed[before]
    share = (level - passed[before]) / rise if rise else 0.0
    mix: Row = {
        name: (1 - share) * float(path[before][name]) + share * float(path[after][name])
        for name in (*KEPT, "step")
    }
    return {REACHED: 1.0, STEPS: mix.pop("step")} | {AT.format(k): x for k, x in mix.items()}
