"""The study's own puzzles: what a draw gives, by a walk done again here."""

import random

import pytest
from walks import Walk, grid_moves, solution, stair_moves

from nemo_algos.engines.data import countdown, puzzles
from nemo_algos.engines.data.countdown import EOS, Rules

# around a wall at 1 from 0 to 2: down, right twice, up
GRID, AROUND = Walk(0, 2, (1, 33, 44, 55), grid_moves), [10, 11, 12, 2, EOS]
STAIRS = Walk(0, 31, (7, 5, 12), stair_moves)


def told(family, times=300):
    rng = random.Random(0)
    return [puzzles.sample(rng, Rules(3, True, family)) for _ in range(times)]


@pytest.mark.parametrize(
    ("walk", "tokens", "right"),
    [
        (GRID, AROUND, True),
        (GRID, [1, 2, EOS], False),  # through the wall
        (GRID, [10, 11, 12, 2], False),  # no end
        (GRID, [10, 11, 12, EOS], False),  # not there
        (GRID, [11, 12, 2, EOS], False),  # diagonally
        (GRID, [10, 0, *AROUND], True),  # there and back
        (Walk(9, 10, (50, 51, 52, 53), grid_moves), [10, EOS], False),  # of the next row
        (Walk(0, 90, (50, 51, 52, 53), grid_moves), [EOS], False),
        (GRID, [], False),
        (STAIRS, [7, 12, 24, 31, EOS], True),
        (STAIRS, [12, 19, 31, EOS], True),
        (STAIRS, [12, 20, 31, EOS], False),  # a step of 8
        (STAIRS, [12, 24, 36, 31, EOS], False),  # down
        (STAIRS, [7, 12, countdown.TOKEN[","], 31, EOS], False),
    ],
)
def test_walks(walk, tokens, right):
    assert solution(walk, tokens) == (tuple(tokens[:-1]) if right else None)


def test_a_walk_is_a_prompt():
    assert (str(STAIRS), STAIRS.key) == ("0 31 > 7 5 12", "0 31 [5, 7, 12]")


def test_drawn_grid_walks_are_shortest():
    """By the lengths of all ways from the start, ring by ring."""
    for walk, response in told("walks:Grid", times=100):
        ring, seen, moves = {walk.start}, {walk.start}, 0
        while walk.goal not in ring:
            sides = ((1, 0), (-1, 0), (0, 1), (0, -1))
            around = {(c // 10 + i, c % 10 + j) for c in ring for i, j in sides}
            free = {10 * r + c for r, c in around if 0 <= r < 10 and 0 <= c < 10}
            ring = free - seen - set(walk.shown)
            seen, moves = seen | ring, moves + 1
        assert solution(walk, response) == tuple(response[:-1]) and len(response) == moves + 1


def test_drawn_stairs_use_the_sizes_shown():
    for walk, response in told("walks:Stairs"):
        steps = [b - a for a, b in zip([0, *response[:-2]], response[:-1], strict=True)]
        assert sum(steps) == walk.goal and {*steps} <= {*walk.shown} and len(steps) <= 18


@pytest.mark.parametrize("family", ["walks:Grid", "walks:Stairs"])
def test_no_puzzle_is_in_both_splits(family):
    rules = Rules(3, True, family)
    test = puzzles.held_out(15, rules)
    assert len({str(p) for p in test}) == 15 and puzzles.held_out(10, rules) == test[:10]
    assert {p.key for p, _ in told(family)}.isdisjoint(p.key for p in test)
    assert max(len(r) for _, r in told(family)) <= puzzles.FAMILIES[family].longest(rules)
