"""A card for each method, its fingerprint beside GRPO's; and two figures of all methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import svg
from cells import CORRECTED, CORRECTIONS, RATES, Cell
from table import Table

from nemo_algos.config import method_name
from nemo_algos.jsonl import replace

BASE, BASELINE = Cell(), "grpo"
# value, update, title, whether the axis is logarithmic
PANELS = (
    ("size", 1, "size of the first update", True),
    ("angle", 1, "its angle, degrees", False),
    ("kl", 10, "KL after ten, nats", True),
    ("gain", 10, "gain after ten", False),
    ("second", 10, "second right answer", False),
)
RATES_SHOWN = (0.01, 0.1, 0.5, 0.9, 0.99)
SIZE, COLUMNS = (130, 110), 6
IN_A_ROW = 3  # panels of a card: a page is 740 pixels wide


def logit(p: float) -> float:
    """Where a pass rate stands on an axis."""
    return math.log(p / (1 - p))


def found(table: Table, arm: str, value: str, update: int, **cell: object) -> float | None:
    """A number of the table, None where there is none."""
    text = table.get((arm, BASE._replace(**cell), update), {}).get(value)
    return float(text) if text else None


def over_rates(table: Table, arm: str, value: str, update: int) -> list[tuple[float, float]]:
    """Pass rates and the value at each; a size over that at 0.5, as step sizes differ."""
    values = {p: found(table, arm, value, update, pass_rate=p) for p in RATES}
    unit = (values[0.5] or math.nan) if value == "size" else 1.0
    return [(logit(p), x / unit) for p, x in values.items() if x is not None]


def panel(
    table: Table, arm: str, kind: tuple[str, int, str, bool], x: float, y: float, title: str
) -> list[str]:
    """A value over pass rates, the method's and GRPO's."""
    value, update, _, is_log = kind
    lines = {k: over_rates(table, a, value, update) for k, a in (("o", BASELINE), ("a", arm))}
    shown = [v for points in lines.values() for _, v in points if v > 1e-6 or not is_log] or [1.0]
    up = svg.ticks(min(shown if is_log else [*shown, 0]), max(shown), is_log)
    axes = svg.Panel(x, y, SIZE, [logit(p) for p in RATES_SHOWN], up, is_log)
    axes.below(f"{p:g}" for p in RATES_SHOWN)
    for level in up:
        axes.beside(level, f"{level:.6g}")
    for k, points in lines.items():
        axes.line([(p, v) for p, v in points if v >= up[0]], k)
    return [svg.text(x - 30, y - 10, title, "t"), *axes.parts]


def draw(arm: str, table: Table, folder: Path) -> None:
    """METHOD.svg: over pass rates, and beside samplers that are not the trainer."""
    parts = [svg.text(14, 16, f"{arm}, over pass rates (dashed: {BASELINE})", "t")]
    places = [(58 + i % IN_A_ROW * 220, 46 + i // IN_A_ROW * 170) for i in range(len(PANELS) + 1)]
    for kind, place in zip(PANELS, places, strict=False):
        parts += panel(table, arm, kind, *place, kind[2])
    parts += _samplers(table, arm, *places[-1])
    replace(folder / f"{method_name(arm)}.svg", svg.document(680, 390, parts))


def _samplers(table: Table, arm: str, x: float, y: float) -> list[str]:
    """The first update's angle by sampler, a mark for each correction."""
    levels = {kind: 3.5 - i for i, kind in enumerate(("same", *CORRECTED))}
    points = {
        (series, level): found(table, arm, "angle", 1, sampler=kind, correction=correction)
        for series, correction in enumerate(CORRECTIONS)
        for kind, level in levels.items()
    }
    across = svg.ticks(0, max(10.0, *(v or 0.0 for v in points.values())), False)
    axes = svg.Panel(x, y, SIZE, across, [0, len(levels)])
    axes.below(f"{v:g}" for v in across)
    for kind, level in levels.items():
        axes.beside(level, kind)
    for series, correction in enumerate(CORRECTIONS):
        at = (x - 24 + series // 2 * 75, y + SIZE[1] + 32 + 18 * (series % 2))
        axes.parts += [svg.mark(at, series), svg.text(at[0] + 9, at[1] + 4, correction)]
    for (series, level), angle in points.items():
        axes.parts += [] if angle is None else [svg.mark(axes.place(angle, level), series)]
    return [svg.text(x - 30, y - 10, "its angle by sampler, degrees", "t"), *axes.parts]


def draw_all(arms: Sequence[str], table: Table, folder: Path) -> None:
    """all_size.svg, all_kl.svg: small multiples, a panel for each method."""
    for kind in (PANELS[0], PANELS[2]):
        parts = [svg.text(14, 16, f"{kind[2]}, over pass rates (dashed: {BASELINE})", "t")]
        for i, arm in enumerate(arms):
            parts += panel(table, arm, kind, 58 + i % COLUMNS * 190, 46 + i // COLUMNS * 155, arm)
        size = (COLUMNS * 190 + 20, -(-len(arms) // COLUMNS) * 155 + 30)
        replace(folder / f"all_{kind[0]}.svg", svg.document(*size, parts))
