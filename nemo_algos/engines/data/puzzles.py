"""Families of puzzles that are made up as they are asked for, in countdown's words.

    countdown   6 10 1 > 17 :         1 + 10 = 11 , 11 + 6 = 17
    sums        6 10 1 > 17 :         6 + 10 = 16 , 16 + 1 = 17       of up to 26 numbers
    grid        12 34 > 13 22 45 57 :  2 3 4 14 24 34                  around four walls, 10 by 10
    stairs      0 31 > 7 5 12 :       7 12 24 31                      by steps of three sizes

A family has puzzles with several right responses, and one draw gives a puzzle and one of them. A
tenth of the puzzles, by a hash of their keys, is held out of warm start and training.
"""

import random
import zlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from nemo_algos.engines.data import countdown
from nemo_algos.engines.data.countdown import EOS, TOKENS_PER_STEP, Puzzle, Rules

SIDE, CELLS, WALLS, STEPS = 10, 100, 4, 3
LONGEST = 18  # moves


@dataclass(frozen=True)
class Walk:
    """start, goal: places 0..99. shown: a grid's walls, or the sizes of the steps of stairs."""

    start: int
    goal: int
    shown: tuple[int, ...]
    moves: Callable[["Walk", int], list[int]]

    def __str__(self) -> str:
        return f"{self.start} {self.goal} > {' '.join(map(str, self.shown))}"

    @property
    def key(self) -> str:
        """What is equal for puzzles that show the same in another order."""
        return f"{self.start} {self.goal} {sorted(self.shown)}"


def grid_moves(walk: Walk, at: int) -> list[int]:
    """The cells beside, up, down, left and right, but for walls."""
    row, column = divmod(at, SIDE)
    beside = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    cells = [r * SIDE + c for r, c in beside if 0 <= r < SIDE and 0 <= c < SIDE]
    return [cell for cell in cells if cell not in walk.shown]


def stair_moves(walk: Walk, at: int) -> list[int]:
    """A step of any of the sizes up."""
    return [at + size for size in walk.shown if at + size < CELLS]


def draw_grid(rng: random.Random, rules: Rules) -> tuple[Walk, list[int]]:
    """Two cells with a way between them, and a shortest one, each as likely at a fork."""
    while True:
        start, goal, *walls = rng.sample(range(CELLS), 2 + WALLS)
        walk = Walk(start, goal, tuple(walls), grid_moves)
        left = _distances(walk)
        if start in left:
            return walk, _walked(rng, walk, left, left[start])


def draw_stairs(rng: random.Random, rules: Rules) -> tuple[Walk, list[int]]:
    """From 0 to a number that the steps can make up, and a way of at most LONGEST moves."""
    while True:
        sizes = tuple(rng.sample(range(5, 25), STEPS))
        walk = Walk(0, rng.randint(20, CELLS - 1), sizes, stair_moves)
        left = _distances(walk)
        if 0 in left:
            return walk, _walked(rng, walk, left, LONGEST)


def _distances(walk: Walk) -> dict[int, int]:
    """The moves from a place to the goal, at least; of places that lead there."""
    into: dict[int, list[int]] = {place: [] for place in range(CELLS)}
    for place in into:
        for to in walk.moves(walk, place):
            into[to].append(place)
    found, edge = {walk.goal: 0}, [walk.goal]
    while edge:
        reached = {p for to in edge for p in into[to] if p not in found}
        found |= dict.fromkeys(reached, found[edge[0]] + 1)
        edge = sorted(reached)
    return found


def _walked(rng: random.Random, walk: Walk, left: dict[int, int], moves: int) -> list[int]:
    """A random way of at most so many moves, token ids with <eos>."""
    at, way = walk.start, list[int]()
    while at != walk.goal:
        moves -= 1
        at = rng.choice([to for to in walk.moves(walk, at) if left.get(to, CELLS) <= moves])
        way.append(at)
    return [*way, EOS]


def solution(walk: Walk, tokens: Sequence[int]) -> tuple[int, ...] | None:
    """The places of a right response, which moves from the start to the goal and ends; or None."""
    if not tokens or tokens[-1] != EOS:
        return None
    at = walk.start
    for place in tokens[:-1]:
        if place not in walk.moves(walk, at):
            return None
        at = place
    return tuple(tokens[:-1]) if at == walk.goal else None


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


FAMILIES = {
    "countdown": Family(draw_countdown, countdown.solution, _worked, range(2, 7)),
    "sums": Family(draw_sum, countdown.solution, _worked, range(2, 27), str),
    "grid": Family(draw_grid, solution, lambda _: LONGEST + 1, range(3, 4)),
    "stairs": Family(draw_stairs, solution, lambda _: LONGEST + 1, range(3, 4)),
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
    rng, puzzles = random.Random(seed), dict[str, Made]()
    for _ in range(100 * number):
        puzzle, _ = sample(rng, rules, held_out=True)
        puzzles.setdefault(FAMILIES[rules.family].name(puzzle), puzzle)
        if len(puzzles) == number:
            break
    return list(puzzles.values())
