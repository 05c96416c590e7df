"""Where prompts and rewards come from: as text, whatever model reads and writes it. No torch."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any

from nemo_algos.local import countdown
from nemo_algos.local.schema import DataSection
from nemo_algos.rewards import Verdict


class Task(ABC):
    """Examples (of any type), their prompts, and verdicts on responses.

    `data.task: package.module:NAME` names a subclass of one's own.
    """

    def __init__(self, data: DataSection, seed: int) -> None:
        self.data, self.seed = data, seed

    @abstractmethod
    def examples(self, step: int, number: int) -> list[Any]:
        """The `number` examples of a training step (from 0): the same whenever it is asked."""

    @abstractmethod
    def prompt(self, example: Any) -> str:
        """All that the user says."""

    @abstractmethod
    def verify(self, examples: list[Any], responses: list[str]) -> list[Verdict]:
        """A verdict on each response, to the example in the same place."""

    def prefix(self, example: Any) -> str:
        """How the answer begins; the model goes on from there."""
        return ""

    def held_out(self, number: int) -> list[Any]:
        """Up to `number` examples to evaluate on, always the same."""
        return []

    def solution(self, example: Any, response: str) -> Hashable:
        """What is equal for two right responses that are the same solution."""
        return response

    def keep(self, fits: Callable[[Any], bool]) -> None:
        """Leave out the examples whose prompts are longer than data.max_input_seq_length."""
        raise ValueError(f"data.max_input_seq_length: {self.data.task} cannot leave prompts out")

    def counts(self) -> str:
        """What is said of the data as a run begins."""
        return self.data.task

    def close(self) -> None:
        """Release processes."""
        return


class Countdown(Task):
    """Countdown: reward 1 for a right worked solution, else 0."""

    def examples(self, step: int, number: int) -> list[countdown.Puzzle]:
        rng = random.Random(f"{self.seed} {step}")
        return [countdown.sample(rng, self.data.rules)[0] for _ in range(number)]

    def held_out(self, number: int) -> list[countdown.Puzzle]:
        return countdown.held_out(number, self.data.rules)

    def prompt(self, example: countdown.Puzzle) -> str:
        return f"{example} :"

    def verify(self, examples: list[Any], responses: list[str]) -> list[Verdict]:
        pairs = zip(examples, responses, strict=True)
        return [Verdict(float(self.solution(*pair) is not None), "ok") for pair in pairs]

    def solution(self, example: countdown.Puzzle, response: str) -> Hashable:
        """See Task. The sorted steps; None where the response is wrong."""
        return countdown.solution(example, countdown.tokens_of(response))
