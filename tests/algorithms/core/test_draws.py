"""draws: pass@k and its relatives by hand, by binomials, over all subsets, and at n = 10,000."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from says import Says

from nemo_algos.algorithms.core.pass_at_k import (
    best_at_k,
    best_at_k_bootstrap,
    miss,
    pass_at_k,
    pass_hat_k,
    ucc_at_k,
)

ALL = range(1, 65)


def exactly(want):
    return pytest.approx(want, abs=1e-12, rel=0)


@pytest.mark.parametrize(
    ("n", "correct", "k", "want"),
    [
        (4, 1, 1, 0.25),
        (4, 1, 2, 0.5),
        (4, 1, 4, 1.0),
        (4, 2, 2, 5 / 6),  # 1 - 1/6: one pair of six has no right one
        (4, 0, 4, 0.0),
        (4, 4, 1, 1.0),
    ],
)
def test_pass_at_k_by_hand(n, correct, k, want):
    assert pass_at_k([correct], n, [k]).tolist() == [exactly([want])]


def test_all_k_against_the_binomials():
    sizes = np.arange(65)
    ratio = np.array([[comb(int(c), k) / comb(64, k) for k in ALL] for c in sizes])
    np.testing.assert_allclose(pass_at_k(sizes, 64, ALL), 1 - ratio[::-1], rtol=0, atol=1e-14)
    np.testing.assert_allclose(pass_hat_k(sizes, 64, ALL), ratio, rtol=1e-13)
    assert not np.signbit(miss(64, ALL)).any()  # "-0.0" is ugly in a report


def test_one_draw_is_the_mean_and_all_draws_find_any():
    sizes = np.arange(65)
    assert pass_at_k(sizes, 64, [1])[:, 0].tolist() == exactly((sizes / 64).tolist())
    assert pass_hat_k(sizes, 64, [1])[:, 0].tolist() == exactly((sizes / 64).tolist())
    assert pass_at_k(sizes, 64, [64])[:, 0].tolist() == [0.0] + [1.0] * 64
    assert pass_hat_k(sizes, 64, [64])[:, 0].tolist() == [0.0] * 64 + [1.0]


def test_ten_thousand():
    """No overflow, and right: with 10 of 10,000 right, by products of 10 factors."""
    n, ks = 10_000, [1, 100, 5_000, 9_990, 9_991, 10_000]
    got = pass_at_k([10, 5_000, 0, n], n, ks)
    want = [1 - np.prod([(n - k - i) / (n - i) for i in range(10)]) for k in ks]
    assert got[0].tolist() == exactly(want)
    assert got[0][-2:].tolist() == [1.0, 1.0] and np.isfinite(miss(n, ks)).all()
    assert got[1].tolist() == exactly([0.5, *[1.0] * 5])
    assert got[2:].tolist() == [[0.0] * 6, [1.0] * 6]


@pytest.mark.parametrize("ks", [[5], [1, 5], [0], [-1]])
@pytest.mark.parametrize("function", [pass_at_k, pass_hat_k, ucc_at_k])
def test_k_beyond_n_is_refused(function, ks):
    with pytest.raises(ValueError) as error:
        function([1], 4, ks)
    assert str(error.value) == Says(f"k {ks} n 4")


@pytest.mark.parametrize("function", [best_at_k, best_at_k_bootstrap])
def test_best_of_more_than_n_is_refused(function):
    with pytest.raises(ValueError) as error:
        function(np.zeros((1, 4)), [5])
    assert str(error.value) == Says("k [5] n 4")


@pytest.mark.parametrize(("sizes", "wrong"), [([5], 5), ([2, 7], 7), ([-1], -1), ([3, -1], -1)])
@pytest.mark.parametrize("function", [pass_at_k, pass_hat_k, ucc_at_k])
def test_more_than_n_right_is_refused(function, sizes, wrong):
    with pytest.raises(ValueError) as error:
        function(sizes, 4, [1])
    assert str(error.value) == Says(f"{wrong} n 4")


def test_ucc_is_the_mean_over_all_subsets():
    owner = [0, 0, 0, 1, 1, 2, -1, -1]  # the cluster of each response, -1: wrong
    for k in range(1, 9):
        found = [len(set(s) - {-1}) for s in combinations(owner, k)]
        assert ucc_at_k([3, 2, 1], 8, [k]).tolist() == exactly([sum(found) / len(found)])


def test_best_is_the_mean_over_all_subsets():
    rewards = np.random.default_rng(0).normal(size=(3, 7)).round(1)  # ties, negative ones
    for k in range(1, 8):
        want = [np.mean([max(s) for s in combinations(row, k)]) for row in rewards]
        assert best_at_k(rewards, [k])[:, 0].tolist() == exactly(want)


def test_bootstrap_is_drawn_with_replacement():
    """1 right of 32: 32 draws with replacement find it with 1 - (31/32)^32 = 0.638, not always."""
    rewards = np.eye(32)[:2]
    assert best_at_k(rewards, [32])[:, 0].tolist() == exactly([1.0, 1.0])
    got = best_at_k_bootstrap(rewards, [1, 32], resamples=40_000, seed=0)
    chance = np.array([1 / 32, 1 - (31 / 32) ** 32])
    np.testing.assert_allclose(got, [chance, chance], atol=0.012)  # 5 standard errors


def test_bootstrap_of_verl_in_numbers():
    """verl's own loop: numpy's global generator seeded by 42 for each k, 1000 draws."""
    rewards = np.random.default_rng(3).random((2, 8))
    for column, k in enumerate((2, 8)):
        np.random.seed(42)
        draws = [np.random.choice(8, size=k, replace=True) for _ in range(1000)]
        want = [np.mean([row[d].max() for d in draws]) for row in rewards]
        assert best_at_k_bootstrap(rewards, [2, 8])[:, column].tolist() == exactly(want)


@pytest.mark.parametrize("correct", [2.5, float("nan"), [1, 0.5]])
def test_part_of_a_right_response_is_refused(correct):
    with pytest.raises(ValueError, match=r"^pass@k .*\bwhole\b"):
        pass_at_k(correct, 4, [1])
