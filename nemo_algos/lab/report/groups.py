"""Runs that differ in their seed alone are one group: one colour, one mean line with a band."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from nemo_algos.lab.report.runs import LoadedRun
from nemo_algos.style import COLORS


class Group(NamedTuple):
    """Seeds of one config, and how they are drawn in every figure."""

    label: str
    color: str
    dashed: bool
    runs: tuple[LoadedRun, ...]


def groups(runs: Sequence[LoadedRun]) -> list[Group]:
    """In the order of the runs; a run without a recorded config is its own group."""
    found: dict[tuple[str, int], list[LoadedRun]] = {}
    seen: Counter[tuple[str, Any]] = Counter()
    for run in runs:
        plain = {key: value for key, value in run.config.items() if key != "logger"}
        grpo = dict(plain.get("grpo", {}))
        seed = grpo.pop("seed", None)
        recorded = "grpo" in run.config
        config = json.dumps(plain | {"grpo": grpo}, sort_keys=True) if recorded else run.label
        found.setdefault((config, seen[config, seed]), []).append(run)
        seen[config, seed] += 1  # the same seed again is no other seed
    made = []
    for i, same in enumerate(found.values()):
        label = same[0].label + (f" ({len(same)} seeds)" if len(same) > 1 else "")
        made.append(Group(label, COLORS[i % len(COLORS)], i >= len(COLORS), tuple(same)))
    return made
