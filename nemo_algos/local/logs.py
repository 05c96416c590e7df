"""A run's records: metrics.jsonl, trace.jsonl, TensorBoard, a live table, the curves as PNG."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pydantic import Field
from rich.console import Console
from rich.live import Live
from rich.table import Table

from nemo_algos.local.lines import Shape, append_lines, read_lines, replace
from nemo_algos.local.style import STYLE

SHOWN = {
    "reward": "reward/mean",
    "entropy": "entropy/exact",
    "clipped": "clip/fraction",
    "ratio p99": "ratio/p99",
    "length": "length/mean",
    "tokens/s": "tokens_per_second",
    "unjudged": "reward/unverified",
}
ROWS = 12


class Step(Shape):
    """A line of a record."""

    step: int = Field(ge=-(2**53), le=2**53)


class Metrics(Shape):
    """Numbers by name, NaN and infinities too."""

    __pydantic_extra__: dict[str, float | None]  # pyright: ignore[reportIncompatibleVariableOverride]
    model_config = Shape.model_config | {"extra": "allow"}


class StepMetrics(Metrics, Step):
    """A line of metrics.jsonl."""


class Log:
    """Use as a context manager; `write` once per step."""

    def __init__(
        self, folder: Path, console: Console, tensorboard: bool, done: int, steps: int
    ) -> None:
        """Drop the lines after `done`, the steps behind a resumed run."""
        self.path, self.traces = folder / "metrics.jsonl", folder / "trace.jsonl"
        self.steps, self.console = steps, console
        self.recent: list[dict[str, Any]] = []
        self.live = Live(console=console, refresh_per_second=4, transient=True)
        self.writer = None
        for path in (self.path, self.traces):
            if path.exists():
                kept = [row for row in read_lines(path, Step) if row["step"] <= done]
                replace(path, "".join(json.dumps(row) + "\n" for row in kept))
        if tensorboard:
            from torch.utils.tensorboard.writer import SummaryWriter

            self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()
        if self.writer:
            self.writer.close()

    def write(
        self, step: int, metrics: dict[str, float], traces: Sequence[dict[str, Any]] = ()
    ) -> None:
        """One step; traces: lines of trace.jsonl."""
        row = {"step": step, **metrics}
        append_lines(self.path, [row])
        if traces:
            append_lines(self.traces, traces)
        if self.writer:
            for name, value in metrics.items():
                self.writer.add_scalar(name, value, step)
        self.recent = [*self.recent, row][-ROWS:]
        if self.console.is_terminal:
            self.live.update(self._table())
        elif step % 10 == 0 or step == self.steps:
            shown = (f"{k} {row[v]:.4g}" for k, v in SHOWN.items() if v in row)
            self.console.print(f"step {step}/{self.steps}  " + "  ".join(shown), soft_wrap=True)

    def _table(self) -> Table:
        table = Table("step", *SHOWN, title=f"step {self.recent[-1]['step']} of {self.steps}")
        for row in self.recent:
            cells = (f"{row[name]:.4g}" if name in row else "-" for name in SHOWN.values())
            table.add_row(str(row["step"]), *cells)
        return table


def read(folder: Path) -> list[dict[str, float]]:
    """The steps of a run."""
    return list(read_lines(folder / "metrics.jsonl", StepMetrics))


CURVES = {
    "reward": ("reward/mean",),
    "entropy (nats)": ("entropy/exact",),
    "clip fraction": ("clip/fraction", "clip/positive_above", "clip/negative_below"),
    "ratio": ("ratio/mean", "ratio/p99", "ratio/max"),
    "KL to the sampling policy (nats)": ("kl/old",),
    "gradient norm": ("grad_norm",),
}


@contextmanager
def drawn(path: Path, size: tuple[float, float], columns: int = 1, **options: Any) -> Iterator[Any]:
    """(figure, axes) to draw on, saved as this file; its folder is made."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(ncols=columns, figsize=size, constrained_layout=True, **options)
        yield figure, axes
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        plt.close(figure)


def plot(folder: Path, title: str) -> Path:
    """curves.png: six panels over steps."""
    rows, path = read(folder), folder / "curves.png"
    with drawn(path, (12, 6.5), 3, nrows=2, dpi=110) as (figure, axes):
        for axis, (name, keys) in zip(axes.flat, CURVES.items(), strict=True):
            for key in keys:
                points = [(r["step"], r[key]) for r in rows if key in r]
                if points:
                    axis.plot(*zip(*points, strict=True), label=key, linewidth=1.3)
            axis.set_title(name)
            if len(axis.lines) > 1:
                axis.legend(fontsize=7)
        for axis in axes[1]:
            axis.set_xlabel("step")
        figure.suptitle(title, fontsize=12)
    return path
