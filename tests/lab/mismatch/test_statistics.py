"""Effect sizes and p-values against scipy."""

import numpy as np
import pytest
from scipy import stats

from nemo_algos.lab.mismatch.statistics import correlation, means


def test_the_rank_correlation_leaves_out_what_is_missing():
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(2, 40))
    found, want = correlation(np.append(x, np.nan), np.append(y, 1.0)), stats.spearmanr(x, y)
    assert found.size == pytest.approx(want.statistic) and found.p == pytest.approx(want.pvalue)
    assert correlation(x, np.ones(40)).p == 1


def test_means_of_groups():
    found = means(np.array([1.0, 3.0, 5.0]), np.array([0, 0, 2]), 3)
    np.testing.assert_array_equal(found, [2.0, np.nan, 5.0])
