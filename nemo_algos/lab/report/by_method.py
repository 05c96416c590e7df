"""The table of methods: held-out results, means over seeds, paired differences to the first."""

from collections.abc import Sequence
from math import isclose
from typing import Any

from nemo_algos.lab.report.differences import flatten
from nemo_algos.lab.report.runs import Group, LoadedRun
from nemo_algos.lab.report.seeds import interval
from nemo_algos.lab.report.summary import Table, TableCell, interval_cell

HELD_OUT = "validation/"
MAY_DIFFER = ("method.", "logger.", "grpo.seed")  # of the configs that are compared
NOTE = (
    "Mean over seeds after training. Second line: its 95 % t interval. Third line: difference to "
    "the first method, paired by seed, with its t interval; bold where that leaves out 0."
)
TWO = (
    "Two seeds say very little: their interval reaches 6.4 times their distance to each side of "
    "the mean. Train five or more."
)
Results = dict[str, float]  # by name


def table(groups: Sequence[Group]) -> Table | None:
    """A column per group; None where each has one seed."""
    if all(len(group.runs) == 1 for group in groups):
        return None
    columns = []
    names: dict[str, None] = {}  # in order, each once
    for group in groups:
        by_seed = {run.seed: final(run) for run in group.runs}
        columns.append(by_seed)
        for results in by_seed.values():
            names |= dict.fromkeys(results)
    seeds = []
    for by_seed in columns:
        seeds.append(TableCell(str(len(by_seed)), ", ".join(map(str, by_seed))))
    rows = [("seeds", seeds)]
    for name in names:
        rows.append((name, [_cell(name, by_seed, columns[0]) for by_seed in columns]))
    headings = ["", *(group.label for group in groups)]
    return Table("Methods", headings, rows, [NOTE, *_cautions(groups, columns)])


def final(run: LoadedRun) -> Results:
    """The run's last held-out evaluation, and its evaluations' mean and pass@k at the largest k."""
    last = {}
    for name, (_, values) in run.metrics.items():
        if name.startswith(HELD_OUT):
            last[name.removeprefix(HELD_OUT)] = values[-1]
    passes = [name for name in last if name.startswith("pass@")]
    shown = [*passes[:1], *passes[-1:]]
    if "accuracy" in last and not (passes and isclose(last["accuracy"], last[passes[0]])):
        shown.insert(0, "accuracy")
    found = {f"held-out {name}": last[name] for name in shown}
    for benchmark, measured in run.evals.items():
        curve = measured["curves"]["pass@k"]
        found[f"{benchmark}: mean"] = measured["scalars"]["mean"]["value"]
        found[f"{benchmark}: pass@{curve['k'][-1]}"] = curve["value"][-1]
    return {name: value for name, value in found.items() if value is not None}


def _cell(name: str, by_seed: dict[Any, Results], first: dict[Any, Results]) -> TableCell:
    """The mean over seeds, and the difference to the first column's over the seeds of both."""
    values = []
    differences = []
    for seed, results in by_seed.items():
        if name in results:
            values.append(results[name])
            if by_seed is not first and name in first.get(seed, {}):
                differences.append(results[name] - first[seed][name])
    return interval_cell(interval(values), interval(differences))


def _cautions(groups: Sequence[Group], columns: Sequence[dict[Any, Results]]) -> list[str]:
    """What else than the method may make a difference."""
    found = []
    if any(len(by_seed) == 2 for by_seed in columns):
        found.append(TWO)
    for group, by_seed in zip(groups, columns, strict=True):
        pairs = len(by_seed.keys() & columns[0].keys())
        if pairs < max(len(by_seed), len(columns[0])):
            found.append(f"{group.label}: the difference is of the {pairs} seeds that both have.")
    configs = [flatten(group.runs[0].manifest, ("config",)) for group in groups]
    keys = dict.fromkeys(key for config in configs for key in config)
    other = []
    for key in keys:
        if not key.startswith(MAY_DIFFER) and len({config.get(key) for config in configs}) > 1:
            other.append(key)
    if other:
        found.append(f"Not only the method differs, but also {', '.join(other)}.")
    last = dict[float, str]()
    for group in groups:
        for run in group.runs:
            steps = [step[-1] for name, (step, _) in run.metrics.items() if HELD_OUT in name]
            if steps:
                last[max(steps)] = run.label
    if len(last) > 1:
        listed = ", ".join(f"{step:g} ({label})" for step, label in sorted(last.items()))
        found.append(f"The last evaluations are at different steps: {listed}.")
    return found
