"""Two families of puzzles in countdown's words: ways on a grid, and steps of three sizes.

    grid        12 34 > 13 22 45 57 :  2 3 4 14 24 34                  around four walls, 10 by 10
    stairs      0 31 > 7 5 12 :       7 12 24 31                      by steps of three sizes

Configs name them as tasks: `data.task: walks:Grid` and `walks:Stairs`.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nemo_algos.engines.data.countdown import EOS, Rules
from nemo_algos.engines.data.puzzles import FAMILIES, Family
from nemo_algos.engines.data.tasks import Puzzles

SIDE = 10
CELLS = 100
WALLS = 4
STEPS = 3
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


class Grid(Puzzles):
    """Ways around the walls of a grid."""


class Stairs(Puzzles):
    """Ways up by steps of three sizes."""


FAMILIES["walks:Grid"] = Family(draw_grid, solution, lambda _: LONGEST + 1, range(3, 4))
FAMILIES["walks:Stairs"] = Family(draw_stairs, solution, lambda _: LONGEST + 1, range(3, 4))
