"""Where prompts and rewards come from."""

from __future__ import annotations

import random
from typing import Any, Protocol

import torch
from torch import Tensor

from nemo_algos.local import countdown
from nemo_algos.local.experience import Experience


class Task(Protocol):
    """Problems, their prompts as token ids, and rewards of responses.

    unverified: responses of the last batch that the verifier could not judge (timeout, error,
    length).
    """

    unverified: int

    def problems(self, step: int, number: int) -> list[Any]:
        """The `number` training problems of a step (from 0): the same ones whenever it is asked."""
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

    def close(self) -> None:
        """Release processes."""
        ...


class Countdown:
    """Countdown: reward 1 for a right worked solution, else 0."""

    unverified = 0

    def __init__(self, rules: countdown.Rules, seed: int) -> None:
        self.rules, self.seed = rules, seed

    def problems(self, step: int, number: int) -> list[countdown.Problem]:
        """See Task."""
        rng = random.Random(f"{self.seed} {step}")
        return [countdown.sample(rng, self.rules)[0] for _ in range(number)]

    def held_out(self, number: int) -> list[countdown.Problem]:
        """See Task."""
        return countdown.held_out_problems(number, self.rules)

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

    def close(self) -> None:
        """See Task."""
