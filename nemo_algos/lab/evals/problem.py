"""What is asked and what came back. P problems, n responses to each."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nemo_algos.engines.data.prompts import Messages, TrainedPrompt
from nemo_algos.engines.data.rows import Row

REFUSED = "refused"
URLS = ("http://", "https://", "data:")  # an image that begins so is no file


@dataclass(frozen=True)
class Problem:
    """One question of a benchmark.

    id: unique in its benchmark. prompt: all that the user says, instructions included. answer: what
    the verifier is given (a gold; a letter; JSON of tests or of a query). images: paths or URLs.
    info: what the report shows beside it, e.g. the level. before: messages ahead of the prompt;
    prefix: how the answer begins (a server cannot be given one).
    """

    id: str
    prompt: str
    answer: str
    images: tuple[str, ...] = ()
    info: dict[str, str] = field(default_factory=dict)
    before: Messages = field(default_factory=list)
    prefix: str = ""

    @property
    def messages(self) -> Messages:
        """The conversation, which the prompt ends."""
        return [*self.before, {"role": "user", "content": self.prompt}]


@dataclass(frozen=True)
class Options:
    """What a loader is given beside the rows.

    seed: of the options' order. folder: of the file read, for images. databases: folder of the
    SQLite files. counts: what a loader had to change or leave out, counted as it goes. trained: how
    the model was asked in training, where the benchmark's own prompt is not wanted.
    """

    seed: int = 0
    folder: Path = Path()
    databases: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    trained: TrainedPrompt | None = None

    def id_of(self, row: Row, place: int, *names: str) -> str:
        """The row's own id, else its place (from 0), counted."""
        own = row.get(*names)
        if own is None:
            self.counts["ids from the row number"] += 1
        return str(place if own is None else own)


def info_of(row: Row, *names: str) -> dict[str, str]:
    """Those of the fields that are there, which the report shows beside the problem."""
    return {name: str(row.get(name)) for name in names if row.get(name) is not None}


class Generation(NamedTuple):
    """One response.

    tokens: its length, -1 unknown. finish: stop, length where it was cut, empty where that is
    unknown, or "refused: " and the server's reason. logprobs: of its tokens, nats, where asked for.
    """

    problem: str
    sample: int
    response: str
    tokens: int
    finish: str
    logprobs: list[float] | None = None

    @property
    def refused(self) -> bool:
        return self.finish.startswith(REFUSED)


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
        return self.rewards >= RIGHT


RIGHT = 1 - 1e-6  # full reward, though it may be a sum: .7 + .2 + .1 is below 1 in float64
Wanted = list[tuple[Problem, list[int]]]  # the samples that each problem lacks
Add = Callable[[list[Generation]], None]


class Sampler(Protocol):
    """A model that answers. identity: what its responses depend on, besides prompt and sampling."""

    identity: dict[str, Any]

    def sample(self, wanted: Wanted, add: Add) -> None:
        """Give `add` the wanted responses as they come, in any order, some at a time."""
        ...


def seed_of(*parts: object) -> int:
    """31 bits that are the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4]) >> 1
