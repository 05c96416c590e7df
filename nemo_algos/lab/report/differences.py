"""What differs between the runs' configs, library versions, git states and evaluations."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from nemo_algos.lab.report.numbers import MISSING
from nemo_algos.lab.report.runs import LoadedRun

RECORDED = ("config", "versions", "git")
PLACES = ("logger.log_dir",)
MEASURED_BY = ("sampling", "verifier", "data", "metrics")  # of an evaluation, besides the model
Difference = tuple[str, list[str]]  # key, value in each run


def differing(runs: Sequence[LoadedRun]) -> list[Difference]:
    """Rows of the config, versions, git state and evaluations, where the runs differ."""
    benchmarks: dict[str, None] = {}  # in order, each once
    for run in runs:
        benchmarks |= dict.fromkeys(run.evals)
    rows = []
    for part in RECORDED:
        rows += _of_part((part,), runs)
    for benchmark in benchmarks:
        rows += _of_part(("eval", benchmark), runs)
    return rows


def unlike(runs: Sequence[LoadedRun], benchmark: str) -> list[str]:
    """A sentence where more than the model (or a seed) differs between the runs' evaluations."""
    having = [run for run in runs if benchmark in run.evals]
    found = []
    for key, values in _of_part(("eval", benchmark), having):
        name = key.removeprefix(f"eval.{benchmark}.")
        if name.split(".")[0] in MEASURED_BY and not name.endswith(".seed"):
            labels: dict[str, list[str]] = {}
            for value, run in zip(values, having, strict=True):
                labels.setdefault(value, []).append(run.label)
            listed = ", ".join(f"{value} ({', '.join(named)})" for value, named in labels.items())
            found.append(f"{name} is {listed}")
    if not found:
        return []
    return [f"The runs were not evaluated in the same way: {'; '.join(found)}."]


def _of_part(part: Sequence[str], runs: Sequence[LoadedRun]) -> list[Difference]:
    flat = [flatten(run.manifest, part) for run in runs]
    keys = set[str]().union(*flat) - set(PLACES)
    rows = []
    for key in sorted(keys):
        row = []
        for of_run in flat:
            row.append(of_run.get(key, MISSING) if of_run else "")  # "": nothing was recorded
        values = {value for value, of_run in zip(row, flat, strict=True) if of_run}
        if "versions" in key.split("."):
            values.discard(MISSING)  # not recorded, which is no other version
        if len(values) > 1:
            rows.append((key, row))
    return rows


def flatten(manifest: dict[str, Any], part: Sequence[str]) -> dict[str, str]:
    """Dotted keys to values as JSON (the config's without `config.`), empty where not recorded."""
    value: Any = manifest
    for step in part:
        if step not in value:
            return {}
        value = value[step]
    return dict(_leaves(value, "" if part == ("config",) else ".".join(part)))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}".strip("."))
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)
