"""What k draws from the n responses to a problem bring, in expectation: pass@k and its relatives.

Draws are without replacement (except `best_at_k_bootstrap`), for many k at once, exactly. P
problems, K values of k. All raise ValueError where a k is not in 1..n or a subset is larger than n.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def miss(n: int, ks: Sequence[int]) -> Floats:
    """C(n-s, k) / C(n, k): the chance that k of n miss a subset of size s. [n+1, K], row s.

    The product of (n-k-i)/(n-i) over i < s, so no binomial is ever formed.
    """
    if not all(1 <= k <= n for k in ks):
        raise ValueError(f"k={list(ks)} of n={n} responses: every k must be from 1 to n")
    i = np.arange(n)[:, None]
    # where s > n-k no draw misses the subset: 0, and without the clip it would be -0.0
    factors = (n - np.asarray(ks) - i).clip(min=0) / (n - i)
    return np.vstack([np.ones(len(ks)), factors.cumprod(0)])


def pass_at_k(correct: ArrayLike, n: int, ks: Sequence[int]) -> Floats:
    """1 - C(n-c, k) / C(n, k) [..., K]: at least one of k is right, for c = correct [...] of n."""
    return 1 - miss(n, ks)[_sizes(correct, n)]


def pass_hat_k(correct: ArrayLike, n: int, ks: Sequence[int]) -> Floats:
    """pass^k = C(c, k) / C(n, k) [..., K]: all of k are right, for c = correct [...] of n."""
    return miss(n, ks)[n - _sizes(correct, n)]


def ucc_at_k(sizes: ArrayLike, n: int, ks: Sequence[int]) -> Floats:
    """The Unique Correct Count [K]: how many of m clusters of right responses k draws find.

    Equation 20 of QUATRO's paper: the sum over the cluster sizes s [m] of 1 - C(n-s, k) / C(n, k).
    """
    return pass_at_k(sizes, n, ks).sum(0)


def best_at_k(rewards: ArrayLike, ks: Sequence[int]) -> Floats:
    """The mean of the largest of k rewards [P, n] -> [P, K], over all subsets of k of n.

    The i-th smallest is the largest with chance (C(i, k) - C(i-1, k)) / C(n, k).
    """
    ascending = np.sort(np.asarray(rewards, dtype=np.float64), axis=-1)
    below = miss(ascending.shape[-1], ks)[::-1]  # row i: all of k are among the i smallest
    return ascending @ np.diff(below, axis=0)


def best_at_k_bootstrap(
    rewards: ArrayLike, ks: Sequence[int], resamples: int = 1000, seed: int = 42
) -> Floats:
    """verl's best@k: k draws WITH replacement, `resamples` times, the same for every problem.

    [P, n] -> [P, K]. Biased towards 0 as an estimate of `best_at_k`: of n = 32 with one right, 32
    draws miss it in 36 % of cases. It depends on the order of the responses.
    """
    table = np.asarray(rewards, dtype=np.float64)
    n = table.shape[-1]
    miss(n, ks)  # refuses the same k
    best = np.empty((len(table), len(ks)))
    for column, k in enumerate(ks):
        # verl seeds numpy's global generator for each k: this gives the same draws
        draws = np.random.RandomState(seed).choice(n, (resamples, k))
        best[:, column] = [row[draws].max(1).mean() for row in table]
    return best


def _sizes(sizes: ArrayLike, n: int) -> NDArray[np.int64]:
    if (np.asarray(sizes) % 1 != 0).any():
        raise ValueError("pass@k needs whole numbers of correct responses, not sums of rewards")
    counts = np.asarray(sizes, dtype=np.int64)
    wrong = counts[(counts < 0) | (counts > n)]
    if wrong.size:
        raise ValueError(f"sizes must be 0 to n={n} responses, got {wrong[0]}")
    return counts
