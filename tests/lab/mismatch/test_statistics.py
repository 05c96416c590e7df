"""Effect sizes and p-values against scipy, known answers and their own false alarms."""

from math import comb

import numpy as np
import pytest
from scipy import stats

from nemo_algos.lab.mismatch.statistics import correlation, explained, mean, split
from nemo_algos.lab.mismatch.tokens import odds

RNG = np.random.default_rng(0)


def test_the_share_between_groups_is_scipys_f_test():
    groups = [RNG.normal(i, 1, 30) for i in (0.0, 0.5, 1.0)]
    values, group = np.concatenate(groups), np.repeat([7, 8, 3], 30)
    found = explained(values, group)
    assert found.p == pytest.approx(stats.f_oneway(*groups).pvalue)
    within = np.mean([g.var(ddof=1) for g in groups])
    assert found.size == pytest.approx(1 - within / values.var(ddof=1))


def test_chance_explains_nothing():
    """Of 200 draws without a difference about 2 have p below .01; the shares are 0 on average."""
    group = np.repeat(np.arange(20), 5)
    found = [explained(RNG.normal(size=100), group) for _ in range(200)]
    assert sum(f.p < 0.01 for f in found) <= 8
    assert abs(np.mean([f.size for f in found])) < 0.02


@pytest.mark.parametrize("group", [np.zeros(9), np.arange(9)])
def test_one_group_or_one_value_each_explains_nothing(group):
    assert explained(RNG.normal(size=9), group) == (0, 1)


def test_groups_without_a_spread_explain_all():
    """Two of six orders of four values are of pure pairs."""
    found = explained(np.array([1.0, 1, 2, 2]), np.array([0, 0, 1, 1]))
    assert found == (1, pytest.approx(1 / 3))
    assert explained(np.repeat([0.0, 1], 50), np.repeat(np.arange(10), 10)).p < 1e-20


def test_a_value_that_stands_alone_in_its_group_explains_nothing():
    """Three ids of 200 that occur once are off, and 50 that occur twice are not."""
    group = np.concatenate((np.arange(200), np.repeat(np.arange(200, 250), 2)))
    found = explained((group < 3).astype(float), group)
    assert found.size == 1 and found.p == pytest.approx(comb(250, 3) / comb(300, 3))


def test_responses_are_the_units():
    values = np.array([0.1, 0.2, np.nan, 0.3])
    assert mean(values).p == pytest.approx(stats.ttest_1samp([0.1, 0.2, 0.3], 0).pvalue)
    assert mean(values[:2]) == mean(np.zeros(5)) == (0, 1)
    assert mean(np.full(5, 0.2) + 1e-15 * np.arange(5)) == (pytest.approx(0.2), 0)
    pair = correlation(np.array([1.0, 2, 3, 4, 5, 6]), np.array([2.0, 4, 6, 8, 11, np.nan]))
    assert pair.size == pytest.approx(1)


def test_two_populations_part_where_they_part():
    at, share = split(np.concatenate((RNG.normal(-5, 0.3, 300), RNG.normal(-1, 0.3, 100))))
    assert -4 < at < -2 and share > 0.95
    _, share = split(RNG.normal(size=2000))
    assert share == pytest.approx(2 / np.pi, abs=0.03)  # of a normal sample, cut in half


def test_odds_are_finite_at_both_ends():
    found = odds(np.array([0.0, -np.log(2), -1000.0]))
    assert np.isfinite(found).all() and found[1] == pytest.approx(0) and found[0] > 16
