"""The page: sections from runs, rendered into one HTML file that needs nothing else."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from nemo_algos import page
from nemo_algos.lab.report import by_method, differences, evaluation, summary, training
from nemo_algos.lab.report.cases import cases
from nemo_algos.lab.report.figure import Figure
from nemo_algos.lab.report.heat import heat
from nemo_algos.lab.report.matrix import Matrix
from nemo_algos.lab.report.runs import Group, LoadedRun, groups, read_runs


def write(folders: Sequence[Path], out: Path) -> Path:
    """Write out/index.html and out/figures (*.png, *.csv), which compare runs; the page's path.

    A folder that cannot be read is left out, and the page says why. Raises ValueError where none
    is left.
    """
    left_out = list[str]()
    runs = read_runs(folders, left_out)
    grouped = groups(runs)
    against: dict[str, summary.Differences] = {}  # by benchmark
    for run in runs:
        for name in run.evals:
            if name not in against:
                against[name] = summary.differences(runs, name)
    embedded = {"cases": cases(grouped), "heat": heat(grouped)}
    curves, zero = training.figures(grouped)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "index.html"
    if path.exists():  # an earlier report, with its figures
        for kind in ("png", "csv"):
            for figure in (out / "figures").glob(f"*.{kind}"):
                figure.unlink()
    group_of = {}  # by the labels of groups and of runs
    for group in grouped:
        group_of[group.label] = group
        for run in group.runs:
            group_of[run.label] = group
    methods = by_method.table(grouped)
    single = [summary.training(runs), summary.overview(runs, against) if against else None]
    if methods:
        single = [summary.by_run(table) for table in single if table]
    values = {
        "runs": runs,
        "left_out": left_out,
        "groups": grouped,
        "methods": methods,
        "single": [table for table in single if table],
        "curves": _draw(curves, out),
        "zero": zero,
        "benchmarks": [_benchmark(n, runs, grouped, found, out) for n, found in against.items()],
        "group_of": group_of,
        "differing": differences.differing(runs),
        "manifests": [(run.label, json.dumps(run.manifest, indent=2)) for run in runs],
        **embedded,
        "written": time.strftime("%Y-%m-%d %H:%M"),
    }
    page.write(path, "report.html", values)
    return path


def _benchmark(
    name: str,
    runs: Sequence[LoadedRun],
    grouped: Sequence[Group],
    against: summary.Differences,
    out: Path,
) -> dict[str, Any]:
    first = next(iter(against.found.values()), {"buckets": []})
    buckets = [(b["above"], b["up_to"]) for b in first["buckets"]]
    return {
        "name": name,
        "cautions": [*differences.unlike(runs, name), *summary.pairing_warnings(against)],
        "table": summary.of_benchmark(runs, name, against),
        "flips": summary.flips(against),
        "figures": _draw(evaluation.figures(name, grouped, buckets), out),
        "similar": _draw(evaluation.similarities(name, grouped), out),
    }


def _draw(figures: Sequence[Figure | Matrix], out: Path) -> list[tuple[Figure | Matrix, Markup]]:
    """Save each figure; it, with its SVG, which matplotlib has escaped."""
    return [(figure, Markup(figure.save(out / "figures"))) for figure in figures]
