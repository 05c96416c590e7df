"""Countdown with worked steps: reach a target from a few small numbers, showing each step.

    prompt    6 10 1 > 17 :
    response  1 + 10 = 11 , 11 + 6 = 17 <eos>

Every number is used once (or some are left over, see Rules); operators + - *, intermediates 0..99,
target 1..99. One token per number and symbol.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

OPERATORS = "+-*"
SYMBOLS = ["+", "-", "*", "=", ",", ">", ":", "<eos>", "<pad>", "<bos>"]
VOCABULARY = [str(n) for n in range(100)] + SYMBOLS
TOKEN = {text: i for i, text in enumerate(VOCABULARY)}
EOS = TOKEN["<eos>"]
PAD = TOKEN["<pad>"]
TOKENS_PER_STEP = 6  # a op b = c, and a comma or <eos>

Step = tuple[int, str, int, int]  # a, operator, b, result


class Rules(NamedTuple):
    """How many numbers are shown; without use_all any two or more of them may be used.

    family: of puzzles.FAMILIES.
    """

    numbers: int = 3
    use_all: bool = True
    family: str = "countdown"


@dataclass(frozen=True)
class Puzzle:
    """Numbers in the order shown, and the target; use_all as in Rules."""

    numbers: tuple[int, ...]
    target: int
    use_all: bool = True

    def __str__(self) -> str:
        return f"{' '.join(map(str, self.numbers))} > {self.target}"

    @property
    def key(self) -> str:
        """What is equal for puzzles that differ in the order of their numbers only."""
        return f"{sorted(self.numbers)} {self.target}"


def apply(a: int, operator: str, b: int) -> int:
    """a operator b."""
    return {"+": a + b, "-": a - b, "*": a * b}[operator]


def random_solution(rng: random.Random, rules: Rules) -> tuple[Puzzle, list[Step]]:
    """A solvable puzzle with numbers in 1..10, and one worked solution.

    Without use_all it uses 2 to all of the numbers, each as likely.
    """
    while True:
        numbers = [rng.randint(1, 10) for _ in range(rules.numbers)]
        used = numbers if rules.use_all else rng.sample(numbers, rng.randint(2, len(numbers)))
        steps = _random_steps(rng, list(used))
        if steps and 1 <= steps[-1][3] <= 99:
            return Puzzle(tuple(numbers), steps[-1][3], rules.use_all), steps


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


def encode(steps: Sequence[Step]) -> list[int]:
    """The response of a solution, token ids with <eos>."""
    tokens: list[int] = []
    for a, operator, b, result in steps:
        tokens += [a, TOKEN[operator], b, TOKEN["="], result, TOKEN[","]]
    return [*tokens[:-1], EOS]


def decode(tokens: Sequence[int]) -> str:
    """Token ids as text."""
    return " ".join(VOCABULARY[t] for t in tokens)


def tokens_of(response: str) -> list[int]:
    """Token ids with <eos> of a response's text; <pad> stands for an unknown word."""
    return [*(TOKEN.get(word, PAD) for word in response.split()), EOS]


def solution(puzzle: Puzzle, tokens: Sequence[int]) -> tuple[Step, ...] | None:
    """The sorted steps of a right response (they identify the solution; 1 + 2 is 2 + 1), or None.

    Replays every step. The last one must reach the target, and no result may be left over.
    """
    steps = _parse(tokens)
    if steps is None or steps[-1][3] != puzzle.target:
        return None
    shown = list(puzzle.numbers)
    made = list[int]()
    for a, operator, b, result in steps:
        for used in (a, b):
            source = made if used in made else shown
            if used not in source:
                return None
            source.remove(used)
        if apply(a, operator, b) != result:
            return None
        made.append(result)
    if made != [puzzle.target] or (puzzle.use_all and shown):
        return None
    return tuple(sorted((min(a, b), operator, max(a, b), c) for a, operator, b, c in steps))


def _parse(tokens: Sequence[int]) -> list[Step] | None:
    """The steps of a response that ends in <eos>; None where it is malformed."""
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
    """A verifier: 1.0 where the response is a right worked solution of `6 10 1 > 17`, else 0.0."""
    numbers, _, target = answer.partition(" > ")
    puzzle = Puzzle(tuple(map(int, numbers.split())), int(target))
    return float(solution(puzzle, tokens_of(response)) is not None)
