"""The data of the token heat map: traces as columns, with numbers as they are shown."""

import json
from collections.abc import Sequence
from math import inf, isfinite, log
from typing import Any

import numpy as np

from nemo_algos.lab.report.numbers import format_number
from nemo_algos.lab.report.runs import Group, LoadedRun

BUDGET = 3_000_000  # bytes of JSON, of all runs
PER_TOKEN = ("entropy", "advantage", "ratio", "low", "high")


def heat(groups: Sequence[Group]) -> dict[str, Any]:
    """{"runs": [{label, color, steps}], "scales", "note"} of the runs with traces."""
    traced = []
    for group in groups:
        for run in group.runs:
            if run.traces:
                traced.append((group.color, run))
    if not traced:
        return {"runs": [], "scales": {}, "note": ""}
    runs = []
    notes = []
    rows = []
    for color, run in traced:
        rows += run.traces
        steps = _steps(run)
        kept = _within(steps, BUDGET // len(traced))
        if len(kept) < len(steps):
            notes.append(f"{run.label}: {len(kept)} of {len(steps)} traced steps are shown.")
        runs.append({"label": run.label, "color": color, "steps": kept})
    return {"runs": runs, "scales": _scales(rows), "note": " ".join(notes)}


def _steps(run: LoadedRun) -> list[dict[str, Any]]:
    steps: dict[int, dict[int, dict[str, Any]]] = {}
    for row in run.traces:
        prompts = steps.setdefault(row["step"], {})
        prompt = prompts.setdefault(row["group"], {"prompt": row["prompt"], "responses": []})
        numbers = {"reward": format_number(row["reward"]), "cut": [int(c) for c in row["cut"]]}
        columns = {k: _column(row[k]) for k in PER_TOKEN}
        prompt["responses"].append({**numbers, "tokens": row["tokens"], **columns})
    return [{"step": step, "prompts": list(prompts.values())} for step, prompts in steps.items()]


def _column(values: list[float] | None) -> list[str] | str | None:
    """As text, once where all tokens have the same."""
    if values is None:
        return None
    written = [format_number(x) for x in values]
    if len(set(written)) == 1:
        return written[0]
    return written


def _within(steps: list[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    """The first, the last, and as many evenly between as fit."""
    sizes = [len(json.dumps(step)) for step in steps]
    for number in range(len(steps), 1, -1):
        kept = np.unique(np.linspace(0, len(steps) - 1, number).round().astype(int))
        if sum(sizes[i] for i in kept) <= budget:
            return [steps[i] for i in kept]
    return steps[-1:]


def _scales(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Where the colours end, the same for all runs: 99th percentiles, but no less than `least`."""
    sizes: dict[str, list[float]] = {"entropy": [], "ratio": [], "advantage": []}
    for row in rows:
        sizes["entropy"] += row["entropy"] or ()
        for x in row["ratio"]:
            if 0 < x < inf:
                sizes["ratio"].append(abs(log(x)))
        sizes["advantage"] += [abs(x) for x in row["advantage"]]
    least = {"entropy": 1e-3, "ratio": log(1.2), "advantage": 1e-3}
    ends = {}
    for name, values in sizes.items():
        finite = [x for x in values if isfinite(x)]
        ends[name] = least[name]
        if finite:
            ends[name] = max(float(np.percentile(finite, 99)), least[name])
    return ends
