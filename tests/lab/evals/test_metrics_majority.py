"""maj@k against all subsets counted out, by hand, and at the sizes of a real evaluation."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from nemo_algos.algorithms.core.pass_at_k import pass_at_k
from nemo_algos.lab.evals.metrics import LARGEST, maj_at_k, normalise, plurality


def exactly(want):
    return pytest.approx(want, abs=1e-12, rel=0)


def counted_out(votes, rewards, k):
    """Every subset, its ties shared out; a class is worth the mean reward of all its members."""
    value = {v: np.mean([r for w, r in zip(votes, rewards, strict=True) if w == v]) for v in votes}
    total = []
    for subset in combinations(votes, k):
        counts = Counter(v for v in subset if v is not None)
        winners = [v for v, c in counts.items() if c == max(counts.values())]
        total.append(np.mean([value[v] for v in winners]) if winners else 0.0)
    return np.mean(total)


@pytest.mark.parametrize("seed", range(30))
def test_over_all_subsets(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 11))
    votes = [str(v) if v else None for v in rng.integers(0, rng.integers(2, 8), n)]
    rewards = (rng.random(n) < 0.4).astype(float)
    want = [counted_out(votes, rewards, k) for k in range(1, n + 1)]
    assert maj_at_k(votes, rewards, range(1, n + 1)).tolist() == exactly(want)


def test_of_the_most_that_is_exact():
    """Half the chance of any vote, by symmetry: 3 right and 3 equal wrong ones among 994 silent.

    Beyond the limit it is refused.
    """
    ks = [1, 2, 500, 999, LARGEST]
    want = pass_at_k(6, LARGEST, ks) / 2
    assert plurality([(3, 1.0), (3, 0.0)], LARGEST, ks).tolist() == exactly(want.tolist())
    with pytest.raises(ValueError, match=r"maj@k .*1000.* 1001"):
        plurality([(3, 1.0)], LARGEST + 1, [1])


@pytest.mark.parametrize("k", [0, 4])
def test_k_beyond_n_is_refused(k):
    with pytest.raises(ValueError, match=r"every k .*1"):
        maj_at_k(["5", "5", "7"], [1, 1, 0], [k])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("12", " 12 "),
        ("1 2", "12"),
        ("$x+1$", "x + 1"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\tfrac12", r"\frac12"),
        (r"\left(1, 2\right)", "(1,2)"),
        ("12.", "12"),
    ],
)
def test_one_vote_spelt_two_ways(one, other):
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1.5", "15"), ("A", "a"), ("-1", "1"), (r"\leftarrow", "arrow"), ("1/2", "0.5")],
)
def test_different_votes(one, other):
    assert normalise(one) != normalise(other)
