"""A figure of lines with bands, as SVG for the page, as PNG, and its numbers as CSV."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nemo_algos.style import canvas, plain_ticks, svg

SIZE = (3.9, 2.75)  # inches at 100 pixels: three in a row of a laptop's page
MARGINS = {"left": 0.155, "right": 0.985, "bottom": 0.17, "top": 0.9}  # axes line up in a row
POINTS = 1000  # of a line, that the page knows
FEW = 12  # a line of so few values has a marker at each


@dataclass(frozen=True)
class Line:
    """y over x, with a band low..high where there is one.

    kind: line; points (with error bars); steps (x holds one more edge than y). smooth: draw the
    mean over that many neighbours, and the values themselves faintly; 0: only these. seeds: whose
    mean it is; the band is then a t interval, which may be far wider than the curves.
    """

    label: str
    color: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    kind: Literal["line", "points", "steps"] = "line"
    dashed: bool = False
    smooth: int = 0
    seeds: int = 1

    def values(self) -> dict[str, Any]:
        """For the page: five digits of every, of long lines every second, third, ... point."""
        x = self.x
        if self.kind == "steps":
            x = [*np.add(self.x[1:], self.x[:-1]) / 2]
        rows = {"x": x, "y": self.y, "low": self.low or [], "high": self.high or []}
        every = slice(None, None, -(-len(self.y) // POINTS) or 1)
        columns = {}
        for name, row in rows.items():
            digits = 9 if name == "x" else 5
            columns[name] = [_rounded(value, digits) for value in row[every]]
        return {"label": self.label, "color": self.color, "smooth": self.smooth > 0, **columns}


@dataclass(frozen=True)
class Figure:
    """scale: of x (log2), or of y (log). ticks: names of x = 0, 1, ... caption: what it says."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    caption: str = ""
    scale: Literal["linear", "log2", "log"] = "linear"
    ticks: Sequence[str] = ()

    def save(self, folder: Path) -> str:
        """NAME.png with a legend and NAME.csv in the folder; returns the SVG, without one.

        Its data-plot is what curves.js draws from, its artists' ids are NAME.LINE.PART.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.csv").write_text(self.csv(), encoding="utf-8", errors="replace")
        with canvas(SIZE, salt=self.name, gridspec_kw=MARGINS) as (figure, axes):
            self._draw(axes)
            plain_ticks(figure)
            text = svg(figure)
            plot = escape(json.dumps(self._plot(axes), allow_nan=False, separators=(",", ":")))
            named = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
            if named:
                beneath = {"loc": "upper left", "bbox_to_anchor": (0.02, 0), "frameon": False}
                figure.legend(named.values(), named.keys(), **beneath)
            figure.savefig(folder / f"{self.name}.png", dpi=200, bbox_inches="tight")
        return f'<svg data-plot="{plot}"{text[4:]}'

    def _draw(self, axes: Any) -> None:
        from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

        if self.scale == "log2":
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda k, _: f"{k:g}")
        if self.scale == "log":
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
        for i, line in enumerate(self.lines):
            others = {*axes.get_children()}
            _DRAW[line.kind](axes, line)
            _mark(axes, line, 0.97, lambda y: not isfinite(y))
            if self.scale == "log":
                _mark(axes, line, 0.03, lambda y: y <= 0)
            for n, artist in enumerate(a for a in axes.get_children() if a not in others):
                artist.set_gid(f"{self.name}.{i}.{artist.get_gid() or n}")
        if self.scale != "log" and any(line.seeds > 1 for line in self.lines):
            self._cut_bands(axes)
        if self.ticks:
            axes.set_xticks(range(len(self.ticks)), self.ticks)
            axes.set_xlim(-0.5, len(self.ticks) - 0.5)
        elif self.x_label == "step":
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
        axes.set(title=self.title, xlabel=self.x_label)
        at_top = {"ha": "right", "color": "#555555", "transform": axes.transAxes}
        axes.text(1, 1.035, self.y_label, **at_top)

    def _cut_bands(self, axes: Any) -> None:
        """Bands end at the edge where they are wider than the curves: two seeds' hide all else."""
        values = np.concatenate([np.asarray(line.y, dtype=float) for line in self.lines])
        values = values[np.isfinite(values)]
        if len(values) and np.ptp(values) > 0:
            bottom, top = axes.get_ylim()
            wide = np.ptp(values)
            lowest = values.min() - wide
            if values.min() >= 0:  # a share below 0 is none
                lowest = max(lowest, -wide / 20)
            axes.set_ylim(max(bottom, lowest), min(top, values.max() + wide))

    def _plot(self, axes: Any) -> dict[str, Any]:
        """The lines' values, and of each axis its limits, their places in the SVG, and if log."""
        (left, right, bottom, top), (width, height) = MARGINS.values(), np.multiply(SIZE, 72)
        x = [*axes.get_xlim(), left * width, right * width, axes.get_xscale() == "log"]
        y = [*axes.get_ylim(), (1 - bottom) * height, (1 - top) * height, self.scale == "log"]
        lines = [line.values() for line in self.lines]
        along = {"of": self.x_label, "ticks": [*self.ticks]}
        return {"name": self.name, "x": x, "y": y, **along, "lines": lines}

    def csv(self) -> str:
        """A row per point: series, x, value, low, high; as drawn before smoothing."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("series", self.x_label or "x", "value", "low", "high"))
        for line in self.lines:
            blank = [""] * len(line.y)
            xs = line.x[: len(line.y)]
            if self.ticks:
                xs = [self.ticks[round(x)] for x in line.x]
            for point in zip(xs, line.y, line.low or blank, line.high or blank, strict=True):
                writer.writerow((line.label, *point))
        return out.getvalue()

    @property
    def nonfinite(self) -> int:
        """Values that are no numbers; they are marked at the top edge."""
        count = 0
        for line in self.lines:
            count += sum(not isfinite(y) for y in line.y)
        return count

    @property
    def zeros(self) -> int:
        """Values that a log scale has no place for; they are marked at the bottom edge."""
        count = 0
        if self.scale == "log":
            for line in self.lines:
                count += sum(y <= 0 for y in line.y)
        return count


def _line(axes: Any, line: Line) -> None:
    y = np.asarray(line.y, dtype=float)
    style = "--" if line.dashed else "-"
    if line.smooth:
        axes.plot(line.x, y, color=line.color, alpha=0.25, linewidth=0.8)
        y = running_mean(y, line.smooth)
    axes.plot(line.x, y, style, color=line.color, label=line.label, gid="mean")
    if len(y) <= FEW:
        axes.plot(line.x, y, "o", color=line.color, markersize=4)
    if line.low is not None and line.high is not None:
        low = running_mean(np.asarray(line.low, float), line.smooth)
        high = running_mean(np.asarray(line.high, float), line.smooth)
        style = {"color": line.color, "alpha": 0.14, "linewidth": 0, "gid": "band"}
        axes.fill_between(line.x, low, high, **style)


def _points(axes: Any, line: Line) -> None:
    y = np.asarray(line.y, dtype=float)
    bars = None
    if line.low is not None and line.high is not None:
        bars = np.clip([y - np.asarray(line.low), np.asarray(line.high) - y], 0, None)
    axes.errorbar(line.x, y, bars, fmt="o", color=line.color, label=line.label, markersize=4.5)


def _steps(axes: Any, line: Line) -> None:
    style = "--" if line.dashed else "-"
    axes.stairs(line.y, line.x, color=line.color, label=line.label, linewidth=1.7, linestyle=style)


_DRAW = {"line": _line, "points": _points, "steps": _steps}


def _mark(axes: Any, line: Line, height: float, bad: Callable[[float], bool]) -> None:
    """A cross at a share of the height for each value that has no place on the axis."""
    places = [x for x, y in zip(line.x, line.y, strict=False) if bad(y)]
    across = axes.get_xaxis_transform()  # x in data, y in shares of the height
    axes.plot(places, [height] * len(places), "x", color=line.color, transform=across, markersize=5)


def _rounded(value: float, digits: int) -> float | None:
    """To so many significant digits; None, as JSON has no other word, for one not finite."""
    if not isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def running_mean(y: np.ndarray, width: int) -> np.ndarray:
    """Mean over the finite of the `width` values around each; NaN where there is none."""
    if width <= 1:
        return y
    finite = np.isfinite(y)
    window = np.ones(width)
    total = np.convolve(np.where(finite, y, 0.0), window, "same")
    count = np.convolve(finite.astype(float), window, "same")
    return np.divide(total, count, out=np.full(len(y), np.nan), where=count > 0.5)
