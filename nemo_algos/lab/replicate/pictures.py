"""The pictures of a paper's items: tables as points with intervals, curves, histograms, tokens."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nemo_algos.lab.replicate.found import Absent, Results, metrics_of
from nemo_algos.lab.replicate.manifest import Item, PaperCell
from nemo_algos.lab.replicate.table import ComparedCell, ComparedTable
from nemo_algos.lab.report.figure import Figure, Line
from nemo_algos.lab.report.matrix import Matrix, Side, matrix
from nemo_algos.lab.report.runs import Series
from nemo_algos.lab.report.training import CURVES, WINDOWS, together
from nemo_algos.style import COLORS, canvas, plain_ticks, svg

ACROSS = 5  # panels of a table side by side
KEY = " (point: ours, with its 95 % interval; diamond: printed)"
OURS, PRINTED = COLORS[0], COLORS[1]
TITLES = {chart.name: (chart.title, chart.y_label) for chart in CURVES}


def figures(
    results: Results, name: str, item: Item, missing: dict[str, None]
) -> list[Figure | Matrix]:
    """Curves over steps, pairs of responses, numbers by token; what they lack goes to missing."""
    kinds = {"curves": _curves, "histogram": _histograms, "matrix": _matrices, "tokens": _tokens}
    draw = kinds.get(item.kind)
    made = list(draw(results, name, item, missing)) if draw else []
    return [figure for figure in made if figure.lines]


def _styled(item: Item) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each run with its label's look."""
    for i, run in enumerate(item.runs):
        yield run, {"label": run, "color": COLORS[i % len(COLORS)], "dashed": i >= len(COLORS)}


def _curves(results: Results, name: str, item: Item, missing: dict[str, None]) -> Iterator[Figure]:
    for metric in item.metrics:
        lines = list[Line]()
        for run, look in _styled(item):
            series, lacking = _series(results, item, run, metric)
            missing |= dict.fromkeys(lacking)
            if not series:
                continue
            steps, values = together(series)
            smooth = {"smooth": max(len(steps) // WINDOWS, 1)}
            band = (values.min(0).tolist(), values.max(0).tolist()) if len(values) > 1 else ()
            lines.append(Line(x=steps, y=values.mean(0).tolist(), **_bands(band), **smooth, **look))
        title, unit = TITLES.get(metric, (metric, ""))
        file = re.sub("[/ @]", "_", f"{name}_{metric}")
        yield Figure(file, title, "step", unit, lines)


def _series(results: Results, item: Item, run: str, metric: str) -> tuple[list[Series], list[str]]:
    """The metric over the steps of each seed that has it, and what is not there."""
    found, lacking = list[Series](), results.absent(run)
    for seed in results.seeds(run):
        if " " in metric:
            series, reasons = results.by_checkpoint(item, run, metric, seed)
            none = "no checkpoint is evaluated"
        else:
            name = _known(metric, seed.trained.metrics)
            series, reasons = seed.trained.metrics.get(name, ([], [])), []
            none = f"{metric} of training is not recorded"
        lacking += reasons or ([] if series[0] else [f"{seed.name}: {none}"])
        found += [series] if series[0] else []
    return found, lacking


def _bands(band: Sequence[list[float]]) -> dict[str, list[float]]:
    return dict(zip(("low", "high"), band, strict=False))


def _known(metric: str, metrics: dict[str, Any]) -> str:
    return next((name for name in metrics_of(metric) if name in metrics), "")


def _histograms(
    results: Results, name: str, item: Item, missing: dict[str, None]
) -> Iterator[Figure]:
    for benchmark in item.benchmarks:
        for similarity in item.metrics:
            lines = list[Line]()
            for run, look in _styled(item):
                try:
                    lines.append(_histogram(results, item, run, benchmark, similarity, look))
                except Absent as absent:
                    missing[str(absent)] = None
            about = f"{similarity}, {benchmark}", "similarity of a pair", "share of pairs"
            yield Figure(
                f"{name}_{benchmark}_{similarity}", *about, lines, "Pairs of right responses."
            )


def _histogram(
    results: Results, item: Item, run: str, benchmark: str, similarity: str, look: dict[str, Any]
) -> Line:
    histogram = _side(results, item, run, benchmark).measured.get("histograms", {}).get(similarity)
    if not histogram or not (pairs := sum(histogram["correct"])):
        raise Absent(f"{run}: {benchmark} has no pairs of right responses by {similarity}")
    shares = [count / pairs for count in histogram["correct"]]
    return Line(x=histogram["edges"], y=shares, kind="steps", **look)


def _side(results: Results, item: Item, run: str, benchmark: str) -> Side:
    """The evaluation of the run's first seed. Raises Absent."""
    if not (seeds := results.seeds(run)):
        raise Absent("; ".join(results.absent(run)) or f"{run}: no run is the manifest's")
    measured = results.measured(item, PaperCell(run, (benchmark,), item.kind), seeds[0], benchmark)
    evaluated = seeds[0].evaluation_run(results.manifest.evaluations[item.evaluations[0]].folder)
    assert evaluated
    return Side(run, measured, evaluated.eval_folders[benchmark])


def _matrices(
    results: Results, name: str, item: Item, missing: dict[str, None]
) -> Iterator[Matrix]:
    for benchmark in item.benchmarks:
        sides = list[Side]()
        for run in item.runs:
            try:
                sides.append(_side(results, item, run, benchmark))
            except Absent as absent:
                missing[str(absent)] = None
        for metric in item.metrics if sides else ():
            about = f"{name}_{benchmark}_{metric}", f"{metric}, {benchmark}, pairs of responses"
            try:
                if made := matrix(*about, metric, sides):
                    yield made
            except ValueError as error:  # its responses are not there
                missing[str(error)] = None


def _tokens(results: Results, name: str, item: Item, missing: dict[str, None]) -> Iterator[Figure]:
    """Of each run the traced response with the largest first metric, token by token."""
    for run in item.runs:
        traces = [t for seed in results.seeds(run) for t in seed.trained.traces]
        known = [t for t in traces if all(t.get(metric) for metric in item.metrics)]
        if not known:
            lacking = results.absent(run) or [f"{run}: no trace of tokens"]
            missing |= dict.fromkeys(lacking)
            continue
        trace = max(known, key=lambda t: max(t[item.metrics[0]]))
        places = list(range(1, len(trace["tokens"]) + 1))
        lines = [
            Line(metric, COLORS[i], places, trace[metric], dashed=i > 0)
            for i, metric in enumerate(item.metrics)
        ]
        text = " ".join(trace["tokens"])[:200]
        about = f"{run}, step {trace['step']}", "token", ""
        yield Figure(f"{name}_{run.replace('/', '_')}", *about, lines, text)


def draw(table: ComparedTable, title: str, path: Path) -> str:
    """A panel for each benchmark and metric, a line in it for each run. Returns the SVG.

    Ours is a point with its interval, the printed number a diamond.
    """
    names, *columns = _panels(table)
    found = [(name, cells) for name, cells in zip(*columns, strict=True) if _has_number(cells)]
    titles, panels = [name for name, _ in found], [cells for _, cells in found]
    across = min(len(panels), ACROSS)
    down = -(-len(panels) // across)
    title = ": ".join(part for part in (title, table.title) if part)
    size = (max(2.2 + 2.0 * across, 0.09 * len(title)), 0.8 + down * (0.9 + 0.24 * len(names)))
    grid = {"nrows": down, "ncols": across, "squeeze": False, "sharey": True}
    with canvas(size, salt=path.stem, constrained_layout=True, **grid) as (figure, axes):
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for axis, name, cells in zip(axes.flat, titles, panels, strict=False):
            _panel(axis, cells)
            axis.set_title(_short(name))
        axes[0, 0].set_yticks(range(len(names)), names)
        axes[0, 0].invert_yaxis()
        printed = any(cell.cell.printed is not None for cells in panels for cell in cells)
        figure.suptitle(f"{title}{KEY if printed else ''}")
        plain_ticks(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=140)
        return svg(figure)


def _panels(table: ComparedTable) -> tuple[list[str], list[str], list[list[ComparedCell]]]:
    """Names of the runs, titles of the panels, and each one's cells: the columns, or the rows."""
    labels, rows = [label for label, _ in table.rows], [row for _, row in table.rows]
    if len({cell.cell.run for cell in rows[0]}) > 1:  # a row is a benchmark's
        return [column.split()[0] for column in table.columns], labels, rows
    return labels, table.columns, [list(column) for column in zip(*rows, strict=True)]


def _short(name: str) -> str:
    """In two lines, without the names of many benchmarks."""
    named, _, metric = name.partition(" ")
    short = f"mean of {named.count('+') + 1}" if "+" in named else named
    return f"{short}\n{metric}".rstrip()


def _has_number(cells: Sequence[ComparedCell]) -> bool:
    return any(cell.value or cell.cell.printed is not None for cell in cells)


def _panel(axis: Any, cells: Sequence[ComparedCell]) -> None:
    for y, cell in enumerate(cells):
        if cell.cell.printed is not None:
            axis.plot(cell.cell.printed, y, "D", color=PRINTED, markersize=3.5, mfc="white")
        if cell.value:
            value, low, high, _ = cell.value
            axis.plot(value, y, "o", color=OURS, markersize=4)
            if low is not None and high is not None:
                axis.plot([low, high], [y, y], color=OURS, linewidth=1.3)
    axis.grid(visible=False, axis="y")
