"""Families of puzzles that are made up as they are asked for, in countdown's words.

    countdown   6 10 1 > 17 :         1 + 10 = 11 , 11 + 6 = 17
    sums        6 10 1 > 17 :         6 + 10 = 16 , 16 + 1 = 17       of up to 26 numbers

A family has puzzles with several right responses, and one draw gives a puzzle and one of them. A
tenth of the puzzles, by a hash of their keys, is held out of warm start and training.
"""

import random
import zlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from nemo_algos.engines.data import countdown
from nemo_algos.engines.data.countdown import TOKENS_PER_STEP, Puzzle, Rules


class Made(Protocol):
    """A puzzle; as text it is its prompt."""

    @property
    def key(self) -> str: ...


class Family(NamedTuple):
    """solution: what is equal for right responses that are the same, None for wrong ones.

    name: what is equal for puzzles that are asked once; of one key, all are held out or none.
    """

    draw: Callable[[random.Random, Rules], tuple[Made, list[int]]]
    solution: Callable[[Any, Sequence[int]], Hashable]
    longest: Callable[[Rules], int]  # tokens of a response, <eos> included
    numbers: range  # that data.numbers may be
    name: Callable[[Made], str] = lambda puzzle: puzzle.key


def draw_countdown(rng: random.Random, rules: Rules) -> tuple[Puzzle, list[int]]:
    """See countdown.random_solution."""
    puzzle, steps = countdown.random_solution(rng, rules)
    return puzzle, countdown.encode(steps)


def draw_sum(rng: random.Random, rules: Rules) -> tuple[Puzzle, list[int]]:
    """The numbers are added one by one, as they are shown; their sum is the target, at most 99."""
    largest = min(10, 99 // rules.numbers)
    numbers = [rng.randint(1, largest) for _ in range(rules.numbers)]
    total, *rest = numbers
    steps: list[countdown.Step] = []
    for number in rest:
        steps.append((total, "+", number, total + number))
        total += number
    return Puzzle(tuple(numbers), total), countdown.encode(steps)


def _worked(rules: Rules) -> int:
    return TOKENS_PER_STEP * (rules.numbers - 1)


# by data.task; a task of one's own that is a Puzzles adds its family as `package.module:NAME`
FAMILIES = {
    "countdown": Family(draw_countdown, countdown.solution, _worked, range(2, 7)),
    "sums": Family(draw_sum, countdown.solution, _worked, range(2, 27), str),
}


def is_held_out(puzzle: Made) -> bool:
    """Belongs to the test split, whatever the order in which it shows its numbers."""
    return zlib.crc32(puzzle.key.encode()) % 10 == 0


def sample(rng: random.Random, rules: Rules, held_out: bool = False) -> tuple[Made, list[int]]:
    """A puzzle of the training or the held-out split, and a right response's token ids."""
    while True:
        puzzle, response = FAMILIES[rules.family].draw(rng, rules)
        if is_held_out(puzzle) == held_out:
            return puzzle, response


def held_out(number: int, rules: Rules, seed: int = 0) -> list[Made]:
    """Up to `number` distinct test puzzles, always the same (countdown's 3 numbers: about 260)."""
    rng = random.Random(seed)
    puzzles = dict[str, Made]()
    for _ in range(100 * number):
        puzzle, _ = sample(rng, rules, held_out=True)
        puzzles.setdefault(FAMILIES[rules.family].name(puzzle), puzzle)
        if len(puzzles) == number:
            break
    return list(puzzles.values())
