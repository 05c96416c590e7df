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
MEASURED = ("reward", "entropy", "clip_above", "clip_below", "kl_old")  # of training's curves
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
    measured = {c.title: c.metrics[0] for c in CURVES if c.name in MEASURED}
    after = [[k for k in run.summary.get("after", {}) if k.startswith("pass@")] for run in trained]
    held_out = list(dict.fromkeys(k for names in after for k in (*names[:1], *names[-1:])))
    names = ["method", "seed", "steps", *measured, *(f"held-out {k}" for k in held_out)]
    columns = [_trained_cells(run, [*measured.values()], held_out) for run in trained]
    rows = [
        (name, cells)
        for name, *cells in zip(names, *columns, strict=True)
        if any(cell.text != MISSING for cell in cells)
    ]
    note = "Metrics: mean over the last tenth of the steps."
    note += " Held out: before → after training." if held_out else ""
    notes = [note]
    methods = [run.config.get("method") for run in trained]
    if len(trained) > 1 and not any(methods.count(method) > 1 for method in methods):
        notes.append("One run of each method: a difference may be the seed's.")
    return Table("Training", ["", *(run.label for run in trained)], rows, notes)


def _trained_cells(run: LoadedRun, measured: list[str], held_out: list[str]) -> list[TableCell]:
    method = run.config.get("method") or {}
    written = method.get("name") or "+".join(str(v) for v in method.values()) or MISSING
    parameters = "\n".join(f"{k}={v}" for k, v in method.items() if k != "name")
    steps = max(s for series in run.metrics.values() for s in series[0])
    before, after = (run.summary.get(k, {}) for k in ("before", "after"))
    return [
        TableCell(str(written), parameters),
        TableCell(format_number(run.config.get("grpo", {}).get("seed"))),
        TableCell(format_number(steps)),
        *(TableCell(format_number(_late(run, name, steps))) for name in measured),
        *(
            TableCell(f"{format_number(before.get(k))} → {format_number(after.get(k))}")
            for k in held_out
        ),
    ]


def _late(run: LoadedRun, name: str, last: float) -> float | None:
    """The mean over the steps of the run's last tenth, `last` its last step; None without one."""
    steps, values = run.metrics.get(name, ([], []))
    late = [v for step, v in zip(steps, values, strict=True) if step > last - max(last // LAST, 1)]
    return float(np.mean(late)) if late else None


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
    for benchmark in against:
        for name in ("mean", f"pass@{max(_ks(runs, benchmark))}"):
            cells = [_cell(run, benchmark, name, against[benchmark]) for run in columns]
            rows.append((f"{benchmark}: {name}", cells))
        unjudged = [_unjudged_cell(r.evals.get(benchmark, {}).get("statuses", {})) for r in columns]
        if any(cell.note for cell in unjudged):
            rows.append((f"{benchmark}: not judged", unjudged))
    return Table("Evaluation", ["", *(run.label for run in columns)], rows)


def of_benchmark(runs: Sequence[LoadedRun], benchmark: str, against: Differences) -> Table:
    """Every scalar, pass@k and UCC@k; a column per run."""
    columns = [run for run in runs if benchmark in run.evals]
    metrics = [run.evals[benchmark] for run in columns]
    size = [TableCell(f"{m['problems']} × {m['samples']}") for m in metrics]  # noqa: RUF001
    scalars = dict.fromkeys(s for m in metrics for s in m["scalars"])
    named = [
        "mean",
        *(f"pass@{k}" for k in _ks(columns, benchmark)),
        f"ucc@{max(m['samples'] for m in metrics)}",
        *(name for name in scalars if name != "mean"),
    ]
    rows = [
        ("problems × samples", size),  # noqa: RUF001
        *((name, [_cell(run, benchmark, name, against) for run in columns]) for name in named),
        ("not judged", [_unjudged_cell(m["statuses"]) for m in metrics]),
    ]
    notes = [f"{label}: {reason}" for label, reason in against.reasons.items()]
    for run in columns:
        counts = run.evals[benchmark].get("excluded", {})
        if counts:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            notes.append(f"{run.label}: some means exclude problems: {listed}.")
    return Table("", ["", *(run.label for run in columns)], rows, notes)


def _ks(runs: Sequence[LoadedRun], benchmark: str) -> list[int]:
    """The k that are shown: powers of 4, and the largest of all runs."""
    having = [run.evals[benchmark] for run in runs if benchmark in run.evals]
    every = {k for metrics in having for k in metrics["curves"]["pass@k"]["k"]}
    return sorted(k for k in every if k in KS or k == max(every))


def _cell(run: LoadedRun, benchmark: str, name: str, against: Differences) -> TableCell:
    """A scalar, or a curve at k (pass@4), with its interval and the difference to the first run."""
    if benchmark not in run.evals:
        return TableCell(MISSING)
    metrics = run.evals[benchmark]
    paired = against.found.get(run.label, {})
    if name in metrics["scalars"]:
        return _interval(metrics["scalars"][name], paired.get(name))
    curve, at, k = name.rpartition("@")
    if not at:  # a scalar that was measured of another run only
        return TableCell(MISSING)
    now, change = (_at(curves.get(f"{curve}@k"), int(k)) for curves in (metrics["curves"], paired))
    return _interval(now, paired.get("ucc@n") if name == f"ucc@{metrics['samples']}" else change)


def _unjudged_cell(statuses: dict[str, int]) -> TableCell:
    bad = {status: n for status, n in statuses.items() if status != "ok" and n}
    return TableCell(
        format_number(sum(bad.values())), ", ".join(f"{s} {n}" for s, n in bad.items())
    )


def _interval(interval: Any, difference: Any = None) -> TableCell:
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
    change = f"{format_signed(difference['value'])} [{format_number(low)}, {format_number(high)}]"
    return TableCell(format_number(interval["value"]), f"{note}\n{change}", strong)


def _at(curve: Any, k: int) -> Any:
    """The interval of a curve at k, None where it has none."""
    if not curve or k not in curve["k"]:
        return None
    i = curve["k"].index(k)
    return {part: curve[part][i] for part in ("value", "low", "high")}


def pairing_warnings(against: Differences) -> list[str]:
    """A sentence for each run that has other problems than the first."""
    return [
        f"{label}: the difference covers {found['problems']} problems. It excludes {only['base']} "
        f"that only the first run has and {only['tuned']} that only this one has."
        for label, found in against.found.items()
        if any((only := found["unpaired"]).values())
    ]


def flips(against: Differences) -> Table | None:
    """Problems by the first run's difficulty: solved before and after, and flipped."""
    if not against.found:
        return None
    buckets = next(iter(against.found.values()))["buckets"]
    names = [bucket_name(b["above"], b["up_to"]) for b in buckets]
    rows = []
    for label, found in against.found.items():
        cells = []
        s = found["solved"]
        for b in found["buckets"]:
            solved = f"{b['problems'] - b['unsolved_by_base']} → {b['solved_by_tuned']}"
            flipped = f"of {b['problems']}; flip rate {format_number(b['flip_rate'])}"
            cells.append(TableCell(solved, flipped))
        gained = f"+{s['only_tuned']} −{s['only_base']}"  # noqa: RUF001
        rows.append(
            (label, [*cells, TableCell(gained, f"McNemar p = {format_number(s['p_value'])}")])
        )
    title = "Problems solved at least once, before → after, by correct responses of the first run"
    note = "Flip rate: share of the bucket's problems that only the later run solves."
    return Table(title, ["run", *names, "gained, lost"], rows, [note])
