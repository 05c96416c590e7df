"""Small figures as SVG, a few kilobytes each; light or dark as the reader's system asks."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nemo_algos.style import COLORS

Points = Sequence[tuple[float, float]]
BLUE, GREY, LIGHT_BLUE = COLORS[0], COLORS[-1], COLORS[5]
STYLE = (
    "text{font:10px 'DejaVu Sans',Verdana,sans-serif;fill:#222}.t{font-weight:bold}"
    ".e{text-anchor:end}.m{text-anchor:middle}.b{fill:#fff}.x{stroke:#999;fill:none}"
    f".o{{stroke:{GREY};stroke-dasharray:5 3}}.a{{stroke:{BLUE}}}"
    ".o,.a{fill:none;stroke-width:1.8}.a circle{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.b{fill:#1e2129}.a circle{fill:#1e2129}"
    f".a{{stroke:{LIGHT_BLUE}}}}}"
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
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">'
        f'<style>{STYLE}</style><rect class="b" width="100%" height="100%"/>'
        f"{''.join(parts)}</svg>\n"
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """kind: t bold, e ends at x, m has x in its middle."""
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}">{html.escape(words)}</text>'


def mark(x: float, y: float, series: int) -> str:
    """One of a series, told by shape and colour."""
    path, color = MARKS[series]
    place = f'transform="translate({x:.1f} {y:.1f})"'
    return f'<path {place} d="{path}" fill="none" stroke="{color}" stroke-width="1.8"/>'


def ticks(low: float, high: float, is_log: bool) -> list[float]:
    """Round numbers around and between."""
    if not is_log:
        span = high - low or abs(high) or 1.0
        step = 10 ** math.floor(math.log10(span))
        step *= next(x for x in (0.2, 0.5, 1, 2, 5) if span / (step * x) <= 4)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        return [i * step for i in range(first, max(last, first + 1) + 1)]
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    skip = max(1, math.ceil((last - first) / 4))
    return [10.0**i for i in range(first, max(last, first + 1) + skip, skip)]


@dataclass
class Panel:
    """Axes with their left top corner at x, y."""

    x: float
    y: float
    width: float
    height: float
    across: tuple[float, float]
    up: Sequence[float]
    is_log: bool = False
    parts: list[str] = field(default_factory=list)

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is on the page."""
        turn = math.log10 if self.is_log else float
        low, high = turn(self.up[0]), turn(self.up[-1])
        right = (x - self.across[0]) / (self.across[1] - self.across[0])
        above = (turn(y) - low) / (high - low)
        return self.x + right * self.width, self.y + (1 - above) * self.height

    def frame(self, title: str, labels: Sequence[tuple[float, str]]) -> None:
        """Title, axes, and the labels of both; labels: of the axis below."""
        bottom = self.y + self.height
        path = f"M{self.x:.1f} {self.y:.1f}V{bottom:.1f}h{self.width:.1f}"
        self.parts += [text(self.x - 26, self.y - 10, title, "t"), f'<path class="x" d="{path}"/>']
        self.parts += [text(self.place(x, self.up[0])[0], bottom + 13, w, "m") for x, w in labels]
        for value in self.up:
            y = self.place(self.across[0], value)[1]
            self.parts.append(text(self.x - 4, y + 3, f"{value:.6g}", "e"))

    def line(self, points: Points, kind: str) -> None:
        """kind: a, the method's own with its points; o, the other's."""
        places = [self.place(*p) for p in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2"/>' for x, y in places)
        body = f'<polyline points="{path}"/>{dots if kind == "a" else ""}'
        self.parts.append(f'<g class="{kind}">{body}</g>')
