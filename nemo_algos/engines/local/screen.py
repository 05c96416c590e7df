"""What a person sees of a run: in a terminal a table and a bar, elsewhere lines."""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Column, Table

from nemo_algos.engines.local.evaluation import Shown
from nemo_algos.engines.remarks import HELD_OUT
from nemo_algos.untrusted import one_line

SHOWN = {
    "reward": "reward/mean",
    "held out": HELD_OUT,
    "entropy": "entropy/exact",
    "clipped": "clip/fraction",
    "ratio p99": "ratio/p99",
    "length": "length/mean",
    "tok/s": "tokens_per_second",
    "unjudged": "reward/unverified",
}
ROWS = 12
SILENCE = 5  # seconds without a line
LONGEST = 300  # characters of a response


def say(console: Console, text: str) -> None:
    """One line, however long, as it is."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


class Screen:
    """Use as a context manager around steps and evaluations, from step `done` to step `steps`."""

    def __init__(self, console: Console, done: int, steps: int) -> None:
        self.console = console
        self.done = done
        self.steps = steps
        self.rows = deque[dict[str, float]](maxlen=ROWS)
        columns = (*Progress.get_default_columns(), MofNCompleteColumn())
        self.bar = Progress(*columns, console=console, speed_estimate_period=3600)  # of slow steps
        self.task = self.bar.add_task("step", total=steps, completed=done)
        self.live = Live(get_renderable=self._show, console=console, refresh_per_second=4)
        self.start = self.spoke = time.monotonic()

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def step(self, row: Mapping[str, float]) -> None:
        """A line of metrics.jsonl; what comes later of the same step joins it."""
        number = int(row["step"])
        if self.rows and self.rows[-1]["step"] == number:
            row = {**self.rows.pop(), **row}
        self.rows.append(dict(row))
        self.bar.update(self.task, completed=number)
        if HELD_OUT in row:
            self._redraw()
        elif number > self.done and (number % 10 == 0 or number == self.steps or self._silent()):
            shown = (f"{k} {_short(row[v])}" for k, v in SHOWN.items() if v in row)
            pace = (time.monotonic() - self.start) / (number - self.done)
            self._line(
                f"step {number}/{self.steps}  {'  '.join(shown)}  "
                f"{pace * (self.steps - number) / 60:.1f} min left"
            )

    def track(self, items: Sequence[int], doing: str) -> Iterator[int]:
        """The items one by one, in sight."""
        task = self.bar.add_task(doing, total=len(items))
        for i, item in enumerate(items):
            if i == 0 or self._silent():
                self._line(doing + f": {i} of {len(items)} parts done" * bool(i))
            self._redraw()
            yield item
            self.bar.advance(task)
        self.bar.remove_task(task)

    def responses(self, responses: Sequence[Shown], number: int) -> None:
        """`number` of them, half of them the best and half the worst by reward, as NeMo-RL does."""
        best = sorted(responses, key=lambda r: -r.reward)
        worst = max(len(best) - number // 2, number - number // 2)
        for r in best[: number - number // 2] + best[worst:]:
            lines = f"reward {r.reward:.4g}", _printable(r.prompt), _printable(r.text)
            say(self.console, "\n  ".join(lines))

    def _line(self, text: str) -> None:
        if not self.console.is_terminal:
            say(self.console, text)
        self.spoke = time.monotonic()

    def _redraw(self) -> None:
        """Here, where the height changes: in between, a line printed would not find the top."""
        if self.live.is_started:
            self.live.refresh()

    def _silent(self) -> bool:
        return time.monotonic() - self.spoke >= SILENCE

    def _show(self) -> Group:
        names = {k: v for k, v in SHOWN.items() if self._has(v)}
        columns = [Column(name, justify="right") for name in ("step", *names)]
        table = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for row in self.rows:
            cells = [str(int(row["step"]))]
            for name in names.values():
                cells.append(_short(row[name]) if name in row else "")
            table.add_row(*cells)
        if self.rows:
            return Group(table, self.bar)
        return Group(self.bar)

    def _has(self, metric: str) -> bool:
        return any(metric in row for row in self.rows)


def _short(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:.0f}"
    if abs(value) >= 0.01:
        return f"{value:.3g}"
    return f"{value:.2g}"


def _printable(text: str) -> str:
    """Its beginning, without what a terminal would obey."""
    return one_line(text.strip()[:LONGEST])
