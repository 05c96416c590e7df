"""Families of puzzles: what a draw gives, by a sum done again here."""

import random

import pytest

from nemo_algos.engines.data import puzzles
from nemo_algos.engines.data.countdown import Rules


def told(family, numbers=3, times=300):
    rng = random.Random(0)
    return [puzzles.sample(rng, Rules(numbers, True, family)) for _ in range(times)]


@pytest.mark.parametrize("family", ["countdown", "sums"])
def test_no_puzzle_is_in_both_splits(family):
    rules = Rules(3, True, family)
    test = puzzles.held_out(15, rules)
    assert len({str(p) for p in test}) == 15 and puzzles.held_out(10, rules) == test[:10]
    assert {p.key for p, _ in told(family)}.isdisjoint(p.key for p in test)
    assert max(len(r) for _, r in told(family)) <= puzzles.FAMILIES[family].longest(rules)
