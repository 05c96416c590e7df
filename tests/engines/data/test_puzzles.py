"""Families of puzzles: what a draw gives, by a sum done again here."""

import dataclasses
import random
from collections import Counter

import pytest

from nemo_algos.engines.data import countdown, puzzles
from nemo_algos.engines.data.countdown import Rules


def told(family, numbers=3, times=300):
    rng = random.Random(0)
    return [puzzles.sample(rng, Rules(numbers, True, family)) for _ in range(times)]


@pytest.mark.parametrize("numbers", [2, 9, 26])
def test_a_sum_adds_every_number_once(numbers):
    for puzzle, response in told("sums", numbers):
        assert len(response) == 6 * (numbers - 1)
        first, added = response[0], response[2::6]
        assert Counter([first, *added]) == Counter(puzzle.numbers)
        assert response[-2] == sum(puzzle.numbers) == puzzle.target <= 99
        assert countdown.solution(puzzle, response) is not None


@pytest.mark.parametrize("family", ["countdown", "sums"])
def test_no_puzzle_is_in_both_splits(family):
    rules = Rules(3, True, family)
    test = puzzles.held_out(15, rules)
    assert len({str(p) for p in test}) == 15 and puzzles.held_out(10, rules) == test[:10]
    assert {p.key for p, _ in told(family)}.isdisjoint(p.key for p in test)
    assert max(len(r) for _, r in told(family)) <= puzzles.FAMILIES[family].longest(rules)


def test_sums_of_the_same_numbers_in_another_order_are_puzzles_of_their_own():
    """Of 26 numbers from 1 to 3 there are few sets, and each order has another right response."""
    asked = puzzles.held_out(64, Rules(26, True, "sums"))
    assert len({str(p) for p in asked}) == 64 > len({p.key for p in asked})


@pytest.mark.parametrize("family", ["countdown", "sums"])
def test_the_order_in_which_a_puzzle_shows_its_numbers_is_not_its_key(family):
    puzzle = told(family)[0][0]
    turned = dataclasses.replace(puzzle, numbers=puzzle.numbers[::-1])
    assert turned.key == puzzle.key and str(turned) != str(puzzle)
