"""Where prompts and rewards come from: as text, whatever model reads and writes it. No torch."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, Self

from nemo_algos.engines.data import countdown, puzzles
from nemo_algos.engines.data.prompts import Asked, last_user_message
from nemo_algos.engines.data.puzzles import FAMILIES, Made
from nemo_algos.engines.data.schema import DataSection
from nemo_algos.engines.rewards import Verdict
from nemo_algos.engines.rewards.weighted import Rewards

# ours by the short names that configs use; any other is a "module:NAME"
OURS = {
    **dict.fromkeys(FAMILIES, "nemo_algos.engines.data.tasks:Puzzles"),
    "math": "nemo_algos.engines.data.math_problems:MathProblems",
}


class Response(str):
    """What a model has answered; tokens: how many of them it wrote."""

    tokens: int

    def __new__(cls, text: str, tokens: int) -> Self:
        response = super().__new__(cls, text)
        response.tokens = tokens
        return response


class Task(ABC):
    """Examples (of any type), their prompts, and verdicts on responses.

    `data.task: package.module:NAME` names a subclass of one's own.
    """

    def __init__(self, data: DataSection, seed: int) -> None:
        self.data = data
        self.seed = seed

    @abstractmethod
    def examples(self, step: int, number: int) -> list[Any]:
        """The `number` examples of a training step (from 0): the same whenever it is asked."""

    @abstractmethod
    def prompt(self, example: Any) -> Asked:
        """All that the user says, or a conversation: messages with role and content."""

    def answer(self, example: Any) -> str:
        """What data.rewards, or data.verifier, compare a response with."""
        raise NotImplementedError

    def row(self, example: Any) -> dict[str, Any]:
        """What reward functions see as `row`."""
        return {}

    @cached_property
    def rewards(self) -> Rewards:
        """Those of the config, for `verify`."""
        return Rewards(self.data.functions, self.data.verifier_workers)

    def verify(self, examples: list[Any], responses: list[Response]) -> list[Verdict]:
        """A verdict on each response, to the example in the same place: by the config's rewards."""
        return self.rewards.score(
            {
                "response": responses,
                "answer": [self.answer(e) for e in examples],
                "prompt": [last_user_message(self.prompt(e)) for e in examples],
                "row": [self.row(e) for e in examples],
                "tokens": [r.tokens for r in responses],
            }
        )

    def prefix(self, example: Any) -> str:
        """How the answer begins; the model goes on from there."""
        return ""

    turns = 0  # of the environment in a response, at most

    def reply(self, example: Any, response: str) -> str | None:
        """What the environment says after a response that may go on; None ends it.

        It is put as it is behind the response's tokens, whose end token stays; the model goes on
        from there, and is not trained on it.
        """
        return None

    def held_out(self, number: int) -> list[Any]:
        """Up to `number` examples to evaluate on, always the same."""
        return []

    def solution(self, example: Any, response: str) -> Hashable:
        """What is equal for two right responses that are the same solution."""
        return response

    def keep(self, fits: Callable[[Any], bool]) -> None:
        """Leave out the examples whose prompts are longer than data.max_input_seq_length."""
        what = f"{self.data.task} cannot skip long prompts"
        raise ValueError(f"data.max_input_seq_length: {what}. Remove it.")

    def counts(self) -> str:
        """What is said of the data as a run begins."""
        return self.data.task

    def close(self) -> None:
        """Release processes."""
        if "rewards" in self.__dict__:
            self.rewards.close()


class Puzzles(Task):
    """A family of puzzles: reward 1 for a right response, else 0."""

    def examples(self, step: int, number: int) -> list[Made]:
        rng = random.Random(f"{self.seed} {step}")
        return [puzzles.sample(rng, self.data.rules)[0] for _ in range(number)]

    def held_out(self, number: int) -> list[Made]:
        return puzzles.held_out(number, self.data.rules)

    def prompt(self, example: Made) -> str:
        return f"{example} :"

    def verify(self, examples: list[Any], responses: list[Response]) -> list[Verdict]:
        verdicts = list[Verdict]()
        for example, response in zip(examples, responses, strict=True):
            right = self.solution(example, response) is not None
            verdicts.append(Verdict(float(right), "ok"))
        return verdicts

    def solution(self, example: Made, response: str) -> Hashable:
        """See Task. None where the response is wrong."""
        tokens = countdown.tokens_of(response)
        return FAMILIES[self.data.rules.family].solution(example, tokens)
