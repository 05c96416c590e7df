"""The board: a row for each arm of each regime, as CSV and as a page that filters and sorts."""

from collections.abc import Sequence
from math import isfinite, nan
from pathlib import Path
from typing import NamedTuple

from nemo_algos import page
from nemo_algos.lab.study import scaling
from nemo_algos.lab.study.design import Study, StudyCell
from nemo_algos.lab.study.equal_reward import AT, REACHED, STEPS
from nemo_algos.lab.study.runner import Row, write_table
from nemo_algos.lab.study.summary import ArmResult, Estimate

UNKNOWN = Estimate(0, nan, nan, nan, nan)


class Column(NamedTuple):
    """A metric of the board; digits: behind the point. difference: to the baseline, beside it."""

    metric: str
    heading: str
    digits: int = 3
    difference: bool = True


class Box(NamedTuple):
    """A cell of the page: its text, lines beneath it, and what its column is sorted by."""

    text: str
    below: Sequence[str] = ()
    key: str = ""


COLUMNS = (
    Column("pass@1", "pass@1 at the end"),
    Column(AT.format("pass@16"), "pass@16 at equal reward"),
    Column(AT.format("UCC@16"), "UCC@16 at equal reward", 2),
    Column(AT.format("entropy"), "entropy at equal reward, nats"),
    Column(STEPS, "steps to equal reward", 1),
    Column(REACHED, "share of runs that reach it", 2, difference=False),
)


def write(
    study: Study,
    cells: Sequence[StudyCell],
    found: Sequence[ArmResult],
    paths: dict[str, list[Row]],
    folder: Path,
) -> None:
    """board.csv and board.html, of regimes that are not tuning and have a path."""
    of = {r[:3]: r for r in found}
    regimes = {n: r for n, r in study.regimes.items() if (n, r.baseline, "pass@1") in of}
    regimes = {n: r for n, r in regimes.items() if not n.partition("_tuning")[1]}
    rows, shown = [], []
    for name, regime in regimes.items():
        for arm in (a for a in regime.arms if (name, a, "pass@1") in of):
            own = [c for c in cells if (c.regime, c.arm) == (name, arm)]
            curve = scaling.fit(*scaling.mean_path(own, paths))
            results = [of.get((name, arm, column.metric)) for column in COLUMNS]
            written = _settings(regime.arms[arm])
            rows.append(_row(name, arm, results, curve, written))
            columns = zip(COLUMNS, results, strict=True)
            boxes = [_box(column, result, arm == regime.baseline) for column, result in columns]
            shown.append((regime.title or name, arm, [*boxes, _curve(curve), Box(written)]))
    write_table(folder / "board.csv", rows)
    headings = [c.heading for c in COLUMNS] + ["asymptote; steps to half of it", "settings"]
    values = {
        "headings": headings,
        "rows": shown,
        "regimes": list(dict.fromkeys(row[0] for row in shown)),
        "arms": list(dict.fromkeys(row[1] for row in shown)),
        "claims": [(r.title or n, r.claim, r.exploratory) for n, r in regimes.items()],
    }
    page.write(folder / "board.html", "board.html", values)


def _settings(arm: dict) -> str:
    """What the arm sets beside its file."""
    keys = {key.rpartition(".")[2]: value for key, value in arm.items() if key != "config"}
    return ", ".join(f"{key}={value}" for key, value in keys.items())


def _row(
    regime: str,
    arm: str,
    results: Sequence[ArmResult | None],
    curve: scaling.Curve | None,
    settings: str,
) -> dict[str, object]:
    row: dict[str, object] = {"regime": regime, "arm": arm}
    for column, result in zip(COLUMNS, results, strict=True):
        value = result.value if result else UNKNOWN
        row |= {column.metric: f"{value.mean:.6g}", f"{column.metric}, n": value.n}
        if column.difference:
            gap = result.difference if result else UNKNOWN
            numbers = (*gap[1:5], gap.detectable, result.adjusted if result else nan)
            names = ("difference", "low", "high", "p", "detectable", "p Holm")
            pairs = zip(names, numbers, strict=True)
            row |= {f"{column.metric}, {name}": f"{x:.6g}" for name, x in pairs}
    of_curve = (*curve, curve.bends) if curve else ("",) * 5
    names = ("asymptote", "midpoint", "exponent", "share", "bends")
    return row | dict(zip(names, of_curve, strict=True)) | {"settings": settings}


def _box(column: Column, result: ArmResult | None, baseline: bool) -> Box:
    if result is None:
        return Box("-")
    digits, gap = column.digits, result.difference
    text = f"{result.value.mean:.{digits}f}"
    if baseline or not column.difference or gap.n < 2:
        return Box(text, key=text)
    below = [f"{gap.mean:+.{digits}f} ({gap.low:+.{digits}f} to {gap.high:+.{digits}f})"]
    below += [] if gap.resolved else [f"detectable {gap.detectable:.{digits}f}"]
    below += [f"Holm's p {result.adjusted:.2g}"] if isfinite(result.adjusted) else []
    return Box(text, below, text)


def _curve(curve: scaling.Curve | None) -> Box:
    if curve is None:
        return Box("-")
    if not curve.bends:
        return Box("-", ["does not bend:", f"{curve.share:.0%} of the way"])
    return Box(f"{curve.asymptote:.3f}; {curve.midpoint:.0f}", key=f"{curve.asymptote:.4f}")
