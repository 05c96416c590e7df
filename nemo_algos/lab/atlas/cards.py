"""A card for each method, its fingerprint beside GRPO's; and two figures of all methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nemo_algos.jsonl import replace
from nemo_algos.lab.atlas import svg
from nemo_algos.lab.atlas.design import CORRECTED, CORRECTIONS, RATES, Cell
from nemo_algos.naming import method_name

Table = Mapping[tuple[str, Cell, int], Mapping[str, float]]
BASE, BASELINE = Cell(), "grpo"
# value, update, title, whether the axis is logarithmic
PANELS = (
    ("size", 1, "size of the first update", True),
    ("angle", 1, "its angle, degrees", False),
    ("kl", 10, "KL after ten, nats", True),
    ("gain", 10, "gain after ten", False),
    ("second", 10, "second right answer", False),
)
TICKS = (0.01, 0.1, 0.5, 0.9, 0.99)
WIDE, HIGH, COLUMNS = 130, 110, 8


def logit(p: float) -> float:
    """Where a pass rate stands on an axis."""
    return math.log(p / (1 - p))


LABELS = [(logit(p), f"{p:g}") for p in TICKS]
ACROSS = (LABELS[0][0], LABELS[-1][0])


def over_rates(table: Table, arm: str, value: str, update: int) -> list[tuple[float, float]]:
    """Pass rates and the value at each; a size over that at 0.5, as step sizes differ."""
    cells = {p: table.get((arm, BASE._replace(pass_rate=p), update), {}) for p in RATES}
    unit = cells[0.5].get(value, math.nan) if value == "size" else 1.0
    return [(p, row[value] / unit) for p, row in cells.items() if value in row]


def panel(
    table: Table, arm: str, kind: tuple[str, int, str, bool], x: float, y: float, title: str
) -> svg.Panel:
    """A value over pass rates, the method's and GRPO's."""
    value, update, _, is_log = kind
    lines = {k: over_rates(table, a, value, update) for k, a in (("o", BASELINE), ("a", arm))}
    shown = [v for points in lines.values() for _, v in points]
    shown = [v for v in shown if v > 1e-6] if is_log else [*shown, 0.0]
    up = svg.ticks(min(shown), max(shown), is_log) if shown else [0.0, 1.0]
    axes = svg.Panel(x, y, WIDE, HIGH, ACROSS, up, is_log and bool(shown))
    axes.frame(title, LABELS)
    for k, points in lines.items():
        axes.line([(logit(p), v) for p, v in points if v >= up[0]], k)
    return axes


def draw(arm: str, table: Table, folder: Path) -> None:
    """METHOD.svg: over pass rates, and beside samplers that are not the trainer."""
    step, parts = WIDE + 50, [svg.text(14, 16, f"{arm} (dashed: {BASELINE})", "t")]
    for i, kind in enumerate(PANELS):
        parts += panel(table, arm, kind, 40 + i * step, 46, kind[2]).parts
        parts.append(svg.text(40 + i * step + WIDE / 2, 46 + HIGH + 27, "pass rate", "m"))
    parts += _samplers(table, arm, 75 + len(PANELS) * step, 46)
    replace(folder / f"{method_name(arm)}.svg", svg.document(1225, 192, parts))


def _samplers(table: Table, arm: str, x: float, y: float) -> list[str]:
    """The first update's angle by sampler, a mark for each correction."""
    kinds = ("same", *CORRECTED)
    cells = {(k, c): BASE._replace(sampler=k, correction=c) for c in CORRECTIONS for k in kinds}
    found = {k: table.get((arm, cell, 1), {}).get("angle") for k, cell in cells.items()}
    top = max([v for v in found.values() if v is not None], default=1.0)
    scale = svg.ticks(0, max(top, 10), False)
    axes = svg.Panel(x, y, WIDE, HIGH, (0, scale[-1]), [0, len(kinds)])
    axes.frame("angle by sampler", [(v, f"{v:g}") for v in scale])
    axes.parts = [part for part in axes.parts if 'class="e"' not in part]
    for row, kind in enumerate(kinds):
        axes.parts.append(svg.text(x - 4, axes.place(0, len(kinds) - row - 0.5)[1] + 3, kind, "e"))
    for series, correction in enumerate(CORRECTIONS):
        at = y + 20 + 18 * series
        axes.parts += [
            svg.mark(x + WIDE + 14, at, series),
            svg.text(x + WIDE + 23, at + 3, correction),
        ]
        for row, kind in enumerate(kinds):
            if (angle := found[kind, correction]) is not None:
                level = len(kinds) - row - 0.5
                axes.parts.append(svg.mark(*axes.place(angle, level), series))
    return axes.parts


def draw_all(arms: Iterable[str], table: Table, folder: Path) -> None:
    """all_size.svg, all_kl.svg: small multiples, a panel for each method."""
    arms: Sequence[str] = [*arms]
    width, height = WIDE + 40, HIGH + 45
    rows = math.ceil(len(arms) / COLUMNS)
    for kind in (PANELS[0], PANELS[2]):
        parts = [svg.text(14, 16, f"{kind[2]}, over pass rates (dashed: {BASELINE})", "t")]
        for i, arm in enumerate(arms):
            x, y = 40 + i % COLUMNS * width, 46 + i // COLUMNS * height
            parts += panel(table, arm, kind, x, y, arm).parts
        size = (COLUMNS * width + 20, rows * height + 30)
        replace(folder / f"all_{kind[0]}.svg", svg.document(*size, parts))
