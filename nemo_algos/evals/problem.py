"""What is asked and what came back. P problems, n responses to each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

URLS = ("http://", "https://", "data:")  # an image that begins so is no file


@dataclass(frozen=True)
class Problem:
    """One question of a benchmark.

    id: unique in its benchmark. prompt: all that the user says, instructions included. answer: what
    the verifier is given (a gold; a letter; JSON of tests or of a query). images: paths or URLs.
    info: what the report shows beside it, e.g. the level.
    """

    id: str
    prompt: str
    answer: str
    images: tuple[str, ...] = ()
    info: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """n verified responses to each of P problems; problems with fewer are not in it.

    responses [P][n]; rewards [P,n] float64, 1 = right (0 where the verifier could not judge);
    answers [P][n]: the final answer as written, None where there is none, empty where the benchmark
    has no such thing (code); tokens [P,n]: response lengths, -1 where unknown; finished [P,n]: 1
    ended by itself, 0 was cut, nan unknown; statuses: of all verdicts.
    """

    benchmark: str
    problems: list[Problem]
    responses: list[list[str]]
    rewards: NDArray[np.float64]
    answers: list[list[str | None]]
    tokens: NDArray[np.int64]
    finished: NDArray[np.float64]
    statuses: Counter[str]

    @property
    def correct(self) -> NDArray[np.bool_]:
        """[P,n]: full reward."""
        return self.rewards >= 1
