"""Where prompts and rewards come from."""

from __future__ import annotations

import random
from typing import Any, Protocol

import torch
from torch import Tensor

from nemo_algos.local import countdown
from nemo_algos.local.experience import Experience


class Task(Protocol):
    """Problems, their prompts as token ids, and rewards of responses."""

    def problems(self, rng: random.Random, number: int) -> list[Any]:
        """`number` training problems."""
        ...

    def held_out(self, number: int) -> list[Any]:
        """Up to `number` test problems, always the same."""
        ...

    def prompt(self, problem: Any) -> list[int]:
        """Token ids."""
        ...

    def rewards(self, problems: list[Any], experience: Experience) -> Tensor:
        """[B] float64."""
        ...

    def solutions(self, problems: list[Any], experience: Experience) -> list[Any]:
        """[B]: what identifies a right response's solution, None for a wrong response."""
        ...


class Countdown:
    """Countdown with `numbers` numbers: reward 1 for a right worked solution, else 0."""

    def __init__(self, numbers: int) -> None:
        self.numbers = numbers

    def problems(self, rng: random.Random, number: int) -> list[countdown.Problem]:
        """See Task."""
        return countdown.random_problems(rng, number, self.numbers)

    def held_out(self, number: int) -> list[countdown.Problem]:
        """See Task."""
        return countdown.held_out_problems(number, self.numbers)

    def prompt(self, problem: countdown.Problem) -> list[int]:
        """See Task."""
        return problem.prompt

    def solutions(self, problems: list[countdown.Problem], experience: Experience) -> list[Any]:
        """See Task."""
        pairs = zip(experience.of.tolist(), experience.responses(), strict=True)
        return [countdown.solution(problems[i], tokens) for i, tokens in pairs]

    def rewards(self, problems: list[countdown.Problem], experience: Experience) -> Tensor:
        """See Task."""
        right = [s is not None for s in self.solutions(problems, experience)]
        return torch.tensor(right, dtype=torch.float64)
