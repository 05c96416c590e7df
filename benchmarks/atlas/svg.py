"""Small figures as SVG, a few kilobytes each; light or dark as the reader's system asks."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from nemo_algos.style import COLORS

STYLE = (
    "text{font:11px 'DejaVu Sans',Verdana,sans-serif;fill:#222}.t{font-weight:bold}"
    ".e{text-anchor:end}.m{text-anchor:middle}.b,.a circle{fill:#fff}.x{stroke:#999}"
    f".o{{stroke:{COLORS[-1]};stroke-dasharray:5 3}}.a{{stroke:{COLORS[0]}}}"
    "path,polyline{fill:none;stroke-width:1.8}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.b,.a circle{fill:#1e2129}"
    f".a{{stroke:{COLORS[5]}}}}}"
)
# a path around (0, 0) for each series of marks, and its colour
MARKS = (
    ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", COLORS[1]),
    ("M-3.5-3.5h7v7h-7z", COLORS[2]),
    ("M0-4.5 4.5 3.5h-9z", COLORS[3]),
    ("M-4-4 4 4M4-4-4 4", COLORS[5]),
)


def document(width: float, height: float, parts: Iterable[str]) -> str:
    """A whole file."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
    paper = '<rect class="b" width="100%" height="100%"/>'
    return f"{head}<style>{STYLE}</style>{paper}{''.join(parts)}</svg>\n"


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """kind: t bold, e ends at x, m has x in its middle."""
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}">{html.escape(words)}</text>'


def mark(place: tuple[float, float], series: int) -> str:
    """One of a series, told by shape and colour."""
    (x, y), (path, color) = place, MARKS[series]
    return f'<path transform="translate({x:.1f} {y:.1f})" d="{path}" stroke="{color}"/>'


def ticks(low: float, high: float, is_log: bool) -> list[float]:
    """Round numbers around and between."""
    if is_log:
        low, high = math.log10(low), math.log10(high)
    span = high - low or 1.0
    unit = 10.0 ** math.floor(math.log10(span))
    step = unit * next(x for x in (0.2, 0.5, 1, 2, 5) if span / (unit * x) <= 4)
    step = max(1, round(step)) if is_log else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    steps = [i * step for i in range(first, max(last, first + 1) + 1)]
    return [10.0**x for x in steps] if is_log else steps


class Panel:
    """Axes of this width and height, their left top corner at x, y."""

    def __init__(
        self, x: float, y: float, size: tuple[float, float], across: Sequence[float],
        up: Sequence[float], is_log: bool = False,
    ) -> None:  # fmt: skip
        self.x, self.y, (self.width, self.height) = x, y, size
        self.across, self.up, self.turn = across, up, math.log10 if is_log else float
        path = f"M{x:.1f} {y:.1f}v{self.height}h{self.width}"
        self.parts = [f'<path class="x" d="{path}"/>']

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is on the page."""
        low, high, value = map(self.turn, (self.up[0], self.up[-1], y))
        right = (x - self.across[0]) / (self.across[-1] - self.across[0])
        return self.x + right * self.width, self.y + (high - value) / (high - low) * self.height

    def below(self, labels: Iterable[str]) -> None:
        """What stands at each of `across`."""
        for x, words in zip(self.across, labels, strict=True):
            bottom = self.place(x, self.up[0])
            self.parts.append(text(bottom[0], bottom[1] + 13, words, "m"))

    def beside(self, y: float, words: str) -> None:
        """Left of the axis."""
        self.parts.append(text(self.x - 7, self.place(self.across[0], y)[1] + 3, words, "e"))

    def line(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """kind: a, the method's own with its points; o, the other's."""
        places = [self.place(*p) for p in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2"/>' for x, y in places)
        line = f'<polyline points="{path}"/>{dots if kind == "a" else ""}'
        self.parts.append(f'<g class="{kind}">{line}</g>')
