"""The tables of the report: training, and per benchmark the runs with differences to the first."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nemo_algos.lab.report.compare import compare
from nemo_algos.lab.report.evaluation import bucket_name
from nemo_algos.lab.report.numbers import MISSING, format_number, format_signed
from nemo_algos.lab.report.runs import LoadedRun
from nemo_algos.lab.report.training import CURVES

KS = (4, 16, 64, 256, 1024)
LAST = 10  # a training metric is its mean over the last tenth of the steps


class Differences(NamedTuple):
    """To the first run, by label: what compare() gives, or the reason why there is none."""

    found: dict[str, dict[str, Any]]
    reasons: dict[str, str]


class TableCell(NamedTuple):
    """note: smaller, beneath. strong: an interval that leaves out 0."""

    text: str
    note: str = ""
    strong: bool = False


class Table(NamedTuple):
    """rows: a label each, and a cell per heading after the first."""

    title: str
    headings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[TableCell]]]
    notes: Sequence[str] = ()


def training(runs: Sequence[LoadedRun]) -> Table | None:
    """A column per run: method, seed, where the metrics end, held-out before and after."""
    trained = [run for run in runs if run.metrics]
    if not trained:
        return None
    measured = {}
    for chart in CURVES:
        if chart.in_summary:
            measured[chart.title] = chart.metrics[0]
    held_out = _held_out(trained)
    names = ["method", "seed", "steps", *measured]
    for metric in held_out:
        names.append(f"held-out {metric}")
    metrics = [*measured.values()]
    columns = [_trained_cells(run, metrics, held_out) for run in trained]
    rows = []
    for i, name in enumerate(names):
        cells = [column[i] for column in columns]
        if any(cell.text != MISSING for cell in cells):
            rows.append((name, cells))
    note = "Metrics: mean over the last tenth of the steps."
    if held_out:
        note += " Held out: before → after training."
    notes = [note]
    methods = [run.config.get("method") for run in trained]
    if len(trained) > 1 and not any(methods.count(method) > 1 for method in methods):
        notes.append("One run of each method: a difference may be the seed's.")
    return Table("Training", ["", *_labels(trained)], rows, notes)


def by_run(table: Table) -> Table:
    """The table with a row for each of its columns, so that the runs can be sorted."""
    rows = []
    for i, label in enumerate(table.headings[1:]):
        rows.append((label, [cells[i] for _, cells in table.rows]))
    return table._replace(headings=["", *(name for name, _ in table.rows)], rows=rows)


def _held_out(runs: Sequence[LoadedRun]) -> list[str]:
    """Of each run's pass@k after training those of the least and of the largest k, each once."""
    shown: dict[str, None] = {}
    for run in runs:
        passes = []
        for name in run.summary.get("after", {}):
            if name.startswith("pass@"):
                passes.append(name)
        shown |= dict.fromkeys(passes[:1] + passes[-1:])
    return list(shown)


def _labels(runs: Sequence[LoadedRun]) -> list[str]:
    return [run.label for run in runs]


def _trained_cells(run: LoadedRun, measured: list[str], held_out: list[str]) -> list[TableCell]:
    method = run.config.get("method") or {}
    written = method.get("name") or "+".join(map(str, method.values())) or MISSING
    parameters = "\n".join(f"{k}={v}" for k, v in method.items() if k != "name")
    logged = set[float]()
    for steps, _ in run.metrics.values():
        logged.update(steps)
    last = max(logged)
    cells = [
        TableCell(str(written), parameters),
        TableCell(format_number(run.seed)),
        TableCell(format_number(last)),
    ]
    for name in measured:
        cells.append(TableCell(format_number(_late(run, name, last))))
    before = run.summary.get("before", {})
    after = run.summary.get("after", {})
    for name in held_out:
        change = f"{format_number(before.get(name))} → {format_number(after.get(name))}"
        cells.append(TableCell(change))
    return cells


def _late(run: LoadedRun, name: str, last: float) -> float | None:
    """The mean over the steps of the run's last tenth, `last` its last step; None without one."""
    begin = last - max(last // LAST, 1)
    steps, values = run.metrics.get(name, ([], []))
    late = []
    for step, value in zip(steps, values, strict=True):
        if step > begin:
            late.append(value)
    if not late:
        return None
    return float(np.mean(late))


def differences(runs: Sequence[LoadedRun], benchmark: str) -> Differences:
    """compare() of the first run that has the benchmark with each other one."""
    having = [run for run in runs if benchmark in run.evals]
    out = Differences({}, {})
    for run in having[1:]:
        try:
            out.found[run.label] = compare(having[0].evals[benchmark], run.evals[benchmark])
        except ValueError as error:
            out.reasons[run.label] = str(error)
    return out


def overview(runs: Sequence[LoadedRun], against: dict[str, Differences]) -> Table:
    """Per benchmark the mean and pass@k at the largest k, a column per run."""
    columns = [run for run in runs if run.evals]
    rows: list[tuple[str, list[TableCell]]] = []
    for benchmark, differences in against.items():
        for name in ("mean", f"pass@{max(_ks(runs, benchmark))}"):
            cells = [_cell(run, benchmark, name, differences) for run in columns]
            rows.append((f"{benchmark}: {name}", cells))
        unjudged = []
        for run in columns:
            unjudged.append(_unjudged_cell(run.evals.get(benchmark, {}).get("statuses", {})))
        if any(cell.note for cell in unjudged):
            rows.append((f"{benchmark}: not judged", unjudged))
    return Table("Evaluation", ["", *_labels(columns)], rows)


def of_benchmark(runs: Sequence[LoadedRun], benchmark: str, against: Differences) -> Table:
    """Every scalar, pass@k and UCC@k; a column per run."""
    columns = [run for run in runs if benchmark in run.evals]
    sizes = []
    unjudged = []
    scalars: dict[str, None] = {}  # in order, each once
    largest = 0
    for run in columns:
        measured = run.evals[benchmark]
        sizes.append(TableCell(f"{measured['problems']} × {measured['samples']}"))  # noqa: RUF001
        unjudged.append(_unjudged_cell(measured["statuses"]))
        scalars |= dict.fromkeys(measured["scalars"])
        largest = max(largest, measured["samples"])
    scalars.pop("mean", None)
    passes = [f"pass@{k}" for k in _ks(columns, benchmark)]
    rows = [("problems × samples", sizes)]  # noqa: RUF001
    for name in ("mean", *passes, f"ucc@{largest}", *scalars):
        rows.append((name, [_cell(run, benchmark, name, against) for run in columns]))
    rows.append(("not judged", unjudged))
    notes = [f"{label}: {reason}" for label, reason in against.reasons.items()]
    for run in columns:
        counts = run.evals[benchmark].get("excluded", {})
        if counts:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            notes.append(f"{run.label}: some means exclude problems: {listed}.")
    return Table("", ["", *_labels(columns)], rows, notes)


def _ks(runs: Sequence[LoadedRun], benchmark: str) -> list[int]:
    """The k that are shown: powers of 4, and the largest of all runs."""
    measured: set[int] = set()
    for run in runs:
        if benchmark in run.evals:
            measured.update(run.evals[benchmark]["curves"]["pass@k"]["k"])
    return sorted(k for k in measured if k in KS or k == max(measured))


def _cell(run: LoadedRun, benchmark: str, name: str, against: Differences) -> TableCell:
    """A scalar, or a curve at k (pass@4), with its interval and the difference to the first run."""
    if benchmark not in run.evals:
        return TableCell(MISSING)
    metrics = run.evals[benchmark]
    paired = against.found.get(run.label, {})
    if name in metrics["scalars"]:
        return interval_cell(metrics["scalars"][name], paired.get(name))
    curve, at, k = name.rpartition("@")
    if not at:  # a scalar that was measured of another run only
        return TableCell(MISSING)
    value = _at(metrics["curves"].get(f"{curve}@k"), int(k))
    if name == f"ucc@{metrics['samples']}":
        return interval_cell(value, paired.get("ucc@n"))
    return interval_cell(value, _at(paired.get(f"{curve}@k"), int(k)))


def _unjudged_cell(statuses: dict[str, int]) -> TableCell:
    bad = {status: n for status, n in statuses.items() if status != "ok" and n}
    listed = ", ".join(f"{status} {n}" for status, n in bad.items())
    return TableCell(format_number(sum(bad.values())), listed)


def interval_cell(interval: Any, difference: Any = None) -> TableCell:
    """A value with its low and high, and the difference to the first with its own."""
    if not interval:
        return TableCell(MISSING)
    low = interval["low"]
    high = interval["high"]
    note = "" if low is None else f"{format_number(low)} to {format_number(high)}"
    if not difference or difference["value"] is None:
        return TableCell(format_number(interval["value"]), note)
    low = difference["low"]
    high = difference["high"]
    strong = low is not None and (low > 0 or high < 0)
    change = format_signed(difference["value"])
    if low is not None:
        change += f" [{format_number(low)}, {format_number(high)}]"
    return TableCell(format_number(interval["value"]), f"{note}\n{change}", strong)


def _at(curve: Any, k: int) -> Any:
    """The interval of a curve at k, None where it has none."""
    if not curve or k not in curve["k"]:
        return None
    i = curve["k"].index(k)
    return {part: curve[part][i] for part in ("value", "low", "high")}


def pairing_warnings(against: Differences) -> list[str]:
    """A sentence for each run that has other problems than the first."""
    warnings = []
    for label, found in against.found.items():
        only = found["unpaired"]
        if any(only.values()):
            warnings.append(
                f"{label}: the difference covers {found['problems']} problems. It excludes "
                f"{only['base']} that only the first run has and {only['tuned']} that only this "
                "one has."
            )
    return warnings


def flips(against: Differences) -> Table | None:
    """Problems by the first run's difficulty: solved before and after, and flipped."""
    if not against.found:
        return None
    buckets = next(iter(against.found.values()))["buckets"]
    names = [bucket_name(bucket["above"], bucket["up_to"]) for bucket in buckets]
    rows = []
    for label, found in against.found.items():
        cells = []
        for bucket in found["buckets"]:
            before = bucket["problems"] - bucket["unsolved_by_base"]
            flipped = f"of {bucket['problems']}; flip rate {format_number(bucket['flip_rate'])}"
            cells.append(TableCell(f"{before} → {bucket['solved_by_tuned']}", flipped))
        solved = found["solved"]
        gained = f"+{solved['only_tuned']} −{solved['only_base']}"  # noqa: RUF001
        cells.append(TableCell(gained, f"McNemar p = {format_number(solved['p_value'])}"))
        rows.append((label, cells))
    title = "Problems solved at least once, before → after, by correct responses of the first run"
    note = "Flip rate: share of the bucket's problems that only the later run solves."
    return Table(title, ["run", *names, "gained, lost"], rows, [note])
