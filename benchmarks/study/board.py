"""The board: a row for each arm of each regime, as CSV."""

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import NamedTuple

import scaling
from design import Study, StudyCell
from equal_reward import AT, REACHED, STEPS
from runner import Row, write_table
from summary import ArmResult, Estimate

UNKNOWN = Estimate(0, nan, nan, nan, nan)


class Column(NamedTuple):
    """A metric of the board; difference: to the baseline, beside it."""

    metric: str
    difference: bool = True


COLUMNS = (
    Column("pass@1"),
    Column(AT.format("pass@16")),
    Column(AT.format("UCC@16")),
    Column(AT.format("entropy")),
    Column(STEPS),
    Column(REACHED, difference=False),
)


def write(
    study: Study,
    cells: Sequence[StudyCell],
    found: Sequence[ArmResult],
    paths: dict[str, list[Row]],
    folder: Path,
) -> None:
    """board.csv, of regimes that are not tuning and have a path."""
    of = {r[:3]: r for r in found}
    regimes = {n: r for n, r in study.regimes.items() if (n, r.baseline, "pass@1") in of}
    regimes = {n: r for n, r in regimes.items() if not n.partition("_tuning")[1]}
    rows = []
    for name, regime in regimes.items():
        for arm in (a for a in regime.arms if (name, a, "pass@1") in of):
            own = [c for c in cells if (c.regime, c.arm) == (name, arm)]
            curve = scaling.fit(*scaling.mean_path(own, paths))
            results = [of.get((name, arm, column.metric)) for column in COLUMNS]
            written = _settings(regime.arms[arm])
            rows.append(_row(name, arm, results, curve, written))
    write_table(folder / "board.csv", rows)


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
