"""Countdown with worked steps: reach a target from a few small numbers, showing each step.

    prompt    6 10 1 > 17 :
    response  1 + 10 = 11 , 11 + 6 = 17 <eos>

Every number is used once (or some are left over, see Rules); operators + - *, intermediates 0..99,
target 1..99. One token per number and symbol. Problems are split by a hash of (sorted numbers,
target): a tenth is held out of warm start and training.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

OPERATORS = "+-*"
SYMBOLS = ["+", "-", "*", "=", ",", ">", ":", "<eos>", "<pad>", "<bos>"]
VOCABULARY = [str(n) for n in range(100)] + SYMBOLS
TOKEN = {text: i for i, text in enumerate(VOCABULARY)}
EOS, PAD = TOKEN["<eos>"], TOKEN["<pad>"]
TOKENS_PER_STEP = 6  # a op b = c, and a comma or <eos>

Step = tuple[int, str, int, int]  # a, operator, b, result


class Rules(NamedTuple):
    """numbers: how many are shown. use_all: or any two or more of them, so that right answers to
    one problem may differ in length."""

    numbers: int = 3
    use_all: bool = True


@dataclass(frozen=True)
class Problem:
    """Numbers in the order shown, and the target; use_all as in Rules."""

    numbers: tuple[int, ...]
    target: int
    use_all: bool = True

    @property
    def prompt(self) -> list[int]:
        """Token ids."""
        return [*self.numbers, TOKEN[">"], self.target, TOKEN[":"]]

    @property
    def held_out(self) -> bool:
        """Belongs to the test split, whatever the order of its numbers."""
        key = f"{sorted(self.numbers)} {self.target}"
        return zlib.crc32(key.encode()) % 10 == 0


def apply(a: int, operator: str, b: int) -> int:
    """a operator b."""
    return {"+": a + b, "-": a - b, "*": a * b}[operator]


def random_solution(rng: random.Random, rules: Rules) -> tuple[Problem, list[Step]]:
    """A solvable problem with numbers in 1..10, and one worked solution; without use_all, of 2 to
    all of the numbers, each as likely."""
    while True:
        numbers = [rng.randint(1, 10) for _ in range(rules.numbers)]
        used = numbers if rules.use_all else rng.sample(numbers, rng.randint(2, len(numbers)))
        steps = _random_steps(rng, list(used))
        if steps and 1 <= steps[-1][3] <= 99:
            return Problem(tuple(numbers), steps[-1][3], rules.use_all), steps


def _random_steps(rng: random.Random, pool: list[int]) -> list[Step]:
    steps: list[Step] = []
    while len(pool) > 1:
        a = pool.pop(rng.randrange(len(pool)))
        b = pool.pop(rng.randrange(len(pool)))
        operator = rng.choice(OPERATORS)
        result = apply(a, operator, b)
        if not 0 <= result <= 99:
            return []
        steps.append((a, operator, b, result))
        pool.append(result)
    return steps


def sample(rng: random.Random, rules: Rules, held_out: bool = False) -> tuple[Problem, list[Step]]:
    """As random_solution, from the training or the held-out split."""
    while True:
        problem, steps = random_solution(rng, rules)
        if problem.held_out == held_out:
            return problem, steps


def held_out_problems(number: int, rules: Rules, seed: int = 0) -> list[Problem]:
    """Up to `number` distinct test problems, always the same ones (of 3 numbers there are about
    260)."""
    rng, problems = random.Random(seed), dict[str, Problem]()
    for _ in range(100 * number):
        problem, _ = sample(rng, rules, held_out=True)
        problems.setdefault(f"{sorted(problem.numbers)} {problem.target}", problem)
        if len(problems) == number:
            break
    return list(problems.values())


def encode(steps: Sequence[Step]) -> list[int]:
    """The response of a solution, token ids with <eos>."""
    tokens: list[int] = []
    for a, operator, b, result in steps:
        tokens += [a, TOKEN[operator], b, TOKEN["="], result, TOKEN[","]]
    return [*tokens[:-1], EOS]


def decode(tokens: Sequence[int]) -> str:
    """Token ids as text."""
    return " ".join(VOCABULARY[t] for t in tokens)


def solution(problem: Problem, tokens: Sequence[int]) -> tuple[Step, ...] | None:
    """The sorted steps of a right response (they identify the solution; 1 + 2 is 2 + 1), or None.

    Replays every step. The last one must reach the target, and no result may be left over.
    """
    steps = _parse(tokens)
    if steps is None or steps[-1][3] != problem.target:
        return None
    shown, made = list(problem.numbers), list[int]()
    for a, operator, b, result in steps:
        for used in (a, b):
            source = made if used in made else shown
            if used not in source:
                return None
            source.remove(used)
        if apply(a, operator, b) != result:
            return None
        made.append(result)
    right = made == [problem.target] and not (problem.use_all and shown)
    return _identity(steps) if right else None


def _identity(steps: Sequence[Step]) -> tuple[Step, ...]:
    return tuple(sorted((min(s[0], s[2]), s[1], max(s[0], s[2]), s[3]) for s in steps))


def _parse(tokens: Sequence[int]) -> list[Step] | None:
    """Steps of a response that ends in <eos>; None where it is malformed."""
    if len(tokens) % TOKENS_PER_STEP or not tokens or tokens[-1] != EOS:
        return None
    steps: list[Step] = []
    for i in range(0, len(tokens), TOKENS_PER_STEP):
        a, operator, b, equals, result, end = tokens[i : i + TOKENS_PER_STEP]
        last = i + TOKENS_PER_STEP == len(tokens)
        symbols = VOCABULARY[operator] in OPERATORS and equals == TOKEN["="]
        if not symbols or max(a, b, result) > 99 or end != (EOS if last else TOKEN[","]):
            return None
        steps.append((a, VOCABULARY[operator], b, result))
    return steps


def verify(response: str, answer: str) -> float:
    """A verifier: 1.0 where the response's text is a right worked solution of `answer`, the numbers
    and the target as `6 10 1 > 17`, else 0.0."""
    numbers, _, target = answer.partition(" > ")
    tokens = [TOKEN.get(word, PAD) for word in response.split()]
    problem = Problem(tuple(map(int, numbers.split())), int(target))
    return float(solution(problem, [*tokens, EOS]) is not None)
