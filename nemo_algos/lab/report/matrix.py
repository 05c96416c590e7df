"""How alike all responses to one problem are, pair by pair: QUATRO's Figure III."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nemo_algos.jsonl import read_lines
from nemo_algos.lab.evals.records import GenerationLine
from nemo_algos.style import canvas, svg

# panels side by side; inches
ACROSS = 3
PANEL = 2.3
RULE = "the first of the problems with the most correct responses in {every}"


class Side(NamedTuple):
    """A run's evaluation: measure()'s result, and the folder that holds the responses."""

    label: str
    measured: dict[str, Any]
    folder: Path


class Panel(NamedTuple):
    """A run's similarities [n, n]."""

    label: str
    values: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Over pairs; nan of one response."""
        above = self.values[np.triu_indices(len(self.values), 1)]
        if len(above):
            return float(above.mean())
        return float("nan")


@dataclass(frozen=True)
class Matrix:
    """A figure with a panel for each run, all on the colours of 0 to 1."""

    name: str
    title: str
    lines: Sequence[Panel]
    caption: str = ""
    nonfinite = 0
    zeros = 0

    def save(self, folder: Path) -> str:
        """NAME.png and NAME.csv in the folder; returns the SVG."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.csv").write_text(self.csv(), encoding="utf-8", errors="replace")
        across = min(len(self.lines), ACROSS)
        down = -(-len(self.lines) // across)
        size = (PANEL * across + 0.7, (PANEL + 0.3) * down + 0.3)
        grid = {"nrows": down, "ncols": across, "squeeze": False, "constrained_layout": True}
        with canvas(size, salt=self.name, **grid) as (figure, axes):
            self._draw(figure, axes)
            text = svg(figure)  # first: the layout moves a little with every drawing
            figure.savefig(folder / f"{self.name}.png", dpi=200)
            return text

    def _draw(self, figure: Any, axes: Any) -> None:
        for axis in axes.flat[len(self.lines) :]:
            axis.set_visible(False)
        image = None
        for axis, panel in zip(axes.flat, self.lines, strict=False):
            image = axis.imshow(panel.values, vmin=0, vmax=1, cmap="viridis", interpolation="none")
            axis.grid(visible=False)
            axis.set_title(panel.label, fontsize=8.5, fontweight="normal")
            axis.set_xlabel(f"mean of pairs {panel.mean:.2f}")
        figure.colorbar(image, ax=axes, shrink=0.8)
        figure.suptitle(self.title)

    def csv(self) -> str:
        """A row per run and response: its similarity to every response."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        widest = max(len(panel.values) for panel in self.lines)
        writer.writerow(("series", "response", *range(widest)))
        for panel in self.lines:
            for i, row in enumerate(panel.values):
                writer.writerow((panel.label, i, *(f"{value:.5g}" for value in row)))
        return out.getvalue()


def matrix(name: str, title: str, similarity: str, sides: Sequence[Side]) -> Matrix | None:
    """Of all responses to one problem, in the order of sampling; None where no problem is shared.

    similarity: a key of `MATRICES`. Raises ValueError where a run's responses are not there.
    """
    from nemo_algos.lab.evals.metrics.diversity import of_responses

    problem = most_right(sides)
    if problem is None:
        return None
    panels = []
    counts = []
    for side in sides:
        texts = responses(side, problem)
        panels.append(Panel(side.label, of_responses(similarity, texts)))
        counts.append(f"{_right(side)[problem]} of {len(texts)}")
    right = " and ".join(counts)
    rule = RULE.format(every="every run" if len(sides) > 1 else "the run")
    caption = (
        f"Responses to problem {problem} ({right} correct), in the order of sampling. It is {rule}."
    )
    return Matrix(name, title, panels, caption)


def most_right(sides: Sequence[Side]) -> str | None:
    """The problem with the most right responses in the run that has fewest; the first of equals."""
    counts = [_right(side) for side in sides]
    best = None
    most = -1
    for problem in counts[0]:
        fewest = min(count.get(problem, -1) for count in counts)
        if fewest > most:
            best = problem
            most = fewest
    return best


def _right(side: Side) -> dict[str, int]:
    return dict(zip(side.measured["ids"], side.measured["correct"], strict=True))


def responses(side: Side, problem: str) -> list[str]:
    """The measured ones; of a response that was stored twice the last counts.

    Raises ValueError where they are not all there.
    """
    file = side.folder / "generations.jsonl"
    samples = side.measured["samples"]
    rows = read_lines(file, GenerationLine) if file.exists() else ()
    found = {}
    for row in rows:
        if row["problem"] == problem:
            found[row["sample"]] = row["response"]
    lacking = [i for i in range(samples) if i not in found]
    if lacking:
        raise ValueError(
            f"{len(lacking)} of {samples} responses to {problem} are missing in {file}. "
            "Run `nemo-algos eval` again."
        )
    return [found[i] for i in range(samples)]
