"""The studies' numbers where pages quote them, from benchmarks/study/results.

What stands between `<!-- STUDY: REGIME, ARM, METRIC -->` and `<!-- end -->` is replaced by the
arm's difference to the regime's baseline with its 95 % interval (Student's t), **bold** where that
excludes 0. A pair is a seed. `<!-- STUDY: runs -->` is the number of runs, and
`<!-- learn: before -->`, `after` the held-out pass@1 of the runs in NeMo-RL of benchmarks/learn.
"""

import csv
import json
import re
import statistics
from functools import cache
from pathlib import Path
from typing import Any

from scipy import stats

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "study" / "results"
LEARN = ROOT / "benchmarks" / "learn" / "results.json"
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *RESULTS.parent.glob("*.md")])
QUOTE = re.compile(r"(<!-- (full|mismatch|board|learn): (.*?) -->).*?<!-- end -->", re.DOTALL)
COLUMNS = {"reward": "reward/mean", "entropy": "entropy/exact"}  # the others are named alike


def rows(study: str, name: str) -> list[dict[str, str]]:
    """Of one of a study's CSV files."""
    with (RESULTS / study / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


@cache
def runs_of(study: str) -> dict[tuple[str, str], dict[str, dict[str, str]]]:
    """Its finished runs, by regime and arm, then by seed."""
    finished = {row["id"]: row for row in rows(study, "results")}
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for cell in rows(study, "cells"):
        if cell["run"] in finished:
            arm = found.setdefault((cell["regime"], cell["arm"]), {})
            arm[cell["seed"]] = finished[cell["run"]]
    return found


@cache
def regimes(study: str) -> dict[str, Any]:
    """As the study fixed them."""
    return json.loads((RESULTS / study / "study.json").read_text())["regimes"]


def difference(study: str, regime: str, arm: str, metric: str) -> tuple[float, float, float]:
    """To the regime's baseline: mean, and ends of the interval. The board's are in its table."""
    if study == "board":
        (row,) = [r for r in rows(study, "board") if (r["regime"], r["arm"]) == (regime, arm)]
        mean, low, high = (float(row[f"{metric}, {k}"]) for k in ("difference", "low", "high"))
        return mean, low, high
    column = COLUMNS.get(metric, metric)
    of_arm = runs_of(study)[regime, arm]
    of_base = runs_of(study)[regime, regimes(study)[regime]["baseline"]]
    pairs = [
        float(of_arm[seed][column]) - float(of_base[seed][column])
        for seed in of_arm.keys() & of_base.keys()
    ]
    mean = statistics.mean(pairs)
    error = statistics.stdev(pairs) / len(pairs) ** 0.5
    half = float(stats.t.ppf(0.975, len(pairs) - 1)) * error
    return mean, mean - half, mean + half


def learnt(end: str) -> str:
    """The range of pass@1 before or after the runs of benchmarks/learn in NeMo-RL."""
    figures = json.loads(LEARN.read_text())["figures"]
    runs = [run["validation/accuracy"] for name, run in figures.items() if "nemo_rl/" in name]
    shares = [f"{run[0 if end == 'before' else -1][1]:.2f}" for run in runs]
    return " to ".join(sorted({min(shares), max(shares)}))


def number(study: str, key: str) -> str:
    """What a page shows for a key."""
    if study == "learn":
        return learnt(key)
    if key == "runs":
        return f"{len(rows(study, 'results')):,}"
    regime, rest = key.split(", ", 1)
    arm, metric = rest.rsplit(", ", 1)
    mean, low, high = difference(study, regime, arm, metric)
    text = f"{mean:+.3f} ({low:+.3f}, {high:+.3f})"
    return f"**{text}**" if low > 0 or high < 0 else text


def page(path: Path) -> str:
    """A page with its quotes as they are now."""
    return QUOTE.sub(lambda m: f"{m[1]}{number(m[2], m[3])}<!-- end -->", path.read_text())


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(page(each))
