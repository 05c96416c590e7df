"""Countdown: the puzzles that the embedded engine holds out of training."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_algos.evals.benchmarks.options import Options
from nemo_algos.evals.benchmarks.rows import Row
from nemo_algos.evals.problem import Problem
from nemo_algos.local.countdown import Rules, held_out_problems

AT_MOST = 256


@dataclass(frozen=True)
class Puzzles:
    """Of so many numbers; always the same ones, in the same order."""

    numbers: int

    def rows(self) -> tuple[list[Row], str]:
        """Their texts, and what they are."""
        found = held_out_problems(AT_MOST, Rules(self.numbers))
        texts = [f"{' '.join(map(str, p.numbers))} > {p.target}" for p in found]
        rows = [Row({"puzzle": text}, f"puzzle {i}") for i, text in enumerate(texts, 1)]
        return rows, f"held-out countdown puzzles of {self.numbers} numbers"


def problems(rows: list[Row], options: Options) -> list[Problem]:
    """The prompt is the puzzle and a colon; the puzzle itself is what a solution answers."""
    texts = [row.text("puzzle") for row in rows]
    return [Problem(text, f"{text} :", text) for text in texts]
