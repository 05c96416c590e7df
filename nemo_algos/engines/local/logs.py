"""A run's records: metrics.jsonl, trace.jsonl, what trackers are told, the curves as PNG."""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from nemo_algos.engines.local.folder import RECORD
from nemo_algos.engines.local.schema import LoggerSection
from nemo_algos.engines.local.trackers import TRACKERS, Send, Told, enabled_names
from nemo_algos.jsonl import Metrics, Step, append_lines, read_lines, replace
from nemo_algos.style import save


class StepMetrics(Metrics, Step):
    """A line of metrics.jsonl."""


class Log:
    """Use as a context manager; `write` once per step."""

    def __init__(self, settings: LoggerSection, run: Told, say: Callable[[str], None]) -> None:
        """Drop the lines after `run.done`, the steps behind a resumed run."""
        self.path, self.traces = run.folder / RECORD, run.folder / "trace.jsonl"
        self.settings, self.run, self.say = settings, run, say
        self.waiting: list[dict[str, float]] = []  # of step 0, until there is another
        self.senders: dict[str, Send] = {}
        self.open = ExitStack()
        for path in (self.path, self.traces):
            if path.exists():
                kept = [row for row in read_lines(path, Step) if row["step"] <= run.done]
                replace(path, "".join(json.dumps(row) + "\n" for row in kept))

    def __enter__(self) -> Self:
        """Raises ValueError for a tracker that cannot be begun with."""
        for name in enabled_names(self.settings):
            try:
                told = TRACKERS[name](self.run, self.settings)
                self.senders[name] = self.open.enter_context(told)
            except Exception as error:  # whatever a library raises
                self.open.close()
                raise ValueError(f"logger.{name}_enabled: {error}") from error
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.open.close()
        except Exception as failure:  # whatever a library raises: nothing is lost here by it
            self.say(f"a tracker failed to close: {failure}")

    def write(
        self, step: int, metrics: dict[str, float], traces: Sequence[dict[str, Any]] = ()
    ) -> dict[str, float]:
        """A line of metrics.jsonl; traces: lines of trace.jsonl."""
        row = {"step": step, **metrics}
        self.waiting.append(row)
        if step:
            append_lines(self.path, self.waiting)
            self.waiting.clear()
        if traces:
            append_lines(self.traces, traces)
        for name, send in list(self.senders.items()):
            try:
                send(metrics, step)
            except Exception as error:  # as above
                self.say(f"logging to {name} is disabled from step {step} on: {error}")
                del self.senders[name]
        return row


def read(folder: Path) -> list[dict[str, float]]:
    """The lines of a run: one of each step, and one of each evaluation, after its step's."""
    return list(read_lines(folder / RECORD, StepMetrics))


CURVES = {
    "reward": ("reward/mean", "validation/accuracy"),
    "entropy (nats)": ("entropy/exact",),
    "clip fraction": ("clip/fraction", "clip/positive_above", "clip/negative_below"),
    "ratio": ("ratio/mean", "ratio/p99", "ratio/max"),
    "KL to the sampling policy (nats)": ("kl/old",),
    "gradient norm": ("grad_norm",),
}


def plot(folder: Path, title: str) -> Path:
    """curves.png: six panels over steps."""
    rows, path = read(folder), folder / "curves.png"
    with save(path, (12, 6.5), 3, nrows=2, dpi=110) as (figure, axes):
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
