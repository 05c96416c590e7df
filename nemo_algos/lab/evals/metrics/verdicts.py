"""What is read off verdicts, answers and lengths, problem by problem. P problems, n responses.

maj@k is exact: the chance that the most frequent answer among k of the n responses is right.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from math import ceil, comb

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from nemo_algos.algorithms.core.pass_at_k import (
    best_at_k,
    best_at_k_bootstrap,
    pass_at_k,
    pass_hat_k,
)
from nemo_algos.lab.evals.problem import Evaluation

Floats = NDArray[np.float64]

LARGEST = 1000  # C(1029, 514) is the last that fits a float64
SPELLING = re.compile(r"\s|\$|\\left(?![a-z])|\\right(?![a-z])|\.+\s*$")


def powers_of_two(n: int) -> list[int]:
    """1, 2, 4, ... up to n, and n."""
    return [2**i for i in range(n.bit_length()) if 2**i < n] + [n]


def scalars(evaluation: Evaluation) -> dict[str, Floats]:
    """[P] each; nan where a problem has no such response."""
    correct = evaluation.correct
    tokens = np.where(evaluation.tokens < 0, np.nan, evaluation.tokens)
    chars = np.array([[len(text) for text in row] for row in evaluation.responses], dtype=float)
    finished = evaluation.finished
    out = {"mean": evaluation.rewards.mean(1), "finished": _mean(finished, ~np.isnan(finished))}
    if evaluation.answers:
        boxed = [[answer is not None for answer in row] for row in evaluation.answers]
        out["boxed"] = np.mean(boxed, axis=1)
    for unit, lengths in {"tokens": tokens, "chars": chars}.items():
        known = ~np.isnan(lengths)
        out[f"length/{unit}"] = _mean(lengths, known)
        out[f"length/{unit}/correct"] = _mean(lengths, known & correct)
        out[f"length/{unit}/wrong"] = _mean(lengths, known & ~correct)
    return out


def curves(evaluation: Evaluation, ks: list[int]) -> dict[str, Floats]:
    """[P, K] each; maj@k where there are answers, and few enough responses for it to be exact."""
    correct = evaluation.correct
    n = evaluation.rewards.shape[1]
    out = {
        "pass@k": pass_at_k(correct.sum(1), n, ks),
        "pass^k": pass_hat_k(correct.sum(1), n, ks),
        "best@k": best_at_k(evaluation.rewards, ks),
        "best@k (bootstrap)": best_at_k_bootstrap(evaluation.rewards, ks),
    }
    if evaluation.answers and n <= LARGEST:
        rows = zip(evaluation.answers, correct.astype(float), strict=True)
        out["maj@k"] = np.array([maj_at_k(answers, right, ks) for answers, right in rows])
    return out


def _mean(values: Floats, where: NDArray[np.bool_]) -> Floats:
    """[P, n] -> [P] over the responses that count; nan where none does."""
    with np.errstate(invalid="ignore"):
        return np.where(where, values, 0).sum(1) / where.sum(1)


def normalise(answer: str | None) -> str | None:
    """The vote, without white space, `$`, `\\left`, `\\right` and final dots; None without any.

    `\\dfrac` and `\\tfrac` are `\\frac`.
    """
    if answer is None:
        return None
    return re.sub(r"\\[dt]frac", r"\\frac", SPELLING.sub("", answer)) or None


def maj_at_k(answers: Sequence[str | None], rewards: Floats, ks: Sequence[int]) -> Floats:
    """[K]: the mean over all subsets of k of n responses, ties broken uniformly at random.

    A vote is a response's normalised answer; those without one do not vote, and a subset without
    votes is wrong. The winner's value is the mean reward of all responses with that answer.
    Raises ValueError where n > 1000, or a k is not in 1..n.
    """
    groups: dict[str, list[float]] = defaultdict(list)
    for answer, reward in zip(answers, rewards, strict=True):
        if (vote := normalise(answer)) is not None:
            groups[vote].append(float(reward))
    classes = [(len(group), sum(group) / len(group)) for group in groups.values()]
    return plurality(classes, len(answers), ks)


def plurality(classes: Sequence[tuple[int, float]], n: int, ks: Sequence[int]) -> Floats:
    """[K]: the winner's expected value, for classes of (votes, value) among n responses.

    Class i wins with t votes if each other class j has fewer, or has t and loses the tie. Give each
    class a uniform random rank; if i's is y, the subsets are counted by the coefficients of
    C(m_i, t) x^t prod_j (sum_{l<t} C(m_j, l) x^l + y C(m_j, t) x^t), a polynomial in y that
    Gauss-Legendre integrates over 0..1. All terms are positive: no cancellation.
    """
    if n > LARGEST:
        raise ValueError(f"maj@k supports at most {LARGEST} responses, got {n}")
    if not all(1 <= k <= n for k in ks):
        raise ValueError(f"k={list(ks)} of n={n} responses: every k must be from 1 to n")
    most = max((votes for votes, value in classes if value), default=0)
    won = sum((_won(sorted(classes), n, t) for t in range(1, most + 1)), np.zeros(n + 1))
    return np.array([won[k] / comb(n, k) for k in ks])


def _won(classes: Sequence[tuple[int, float]], n: int, t: int) -> Floats:
    """[n+1]: the sum of the winner's value over the subsets of each size where it has t votes."""
    able = [(votes, value) for votes, value in classes if votes >= t]
    others = _binomials(n - sum(votes for votes, _ in able), n)  # free: none of them reaches t
    # so many are exact to a float64's rounding for a polynomial of positive terms
    number = min((len(able) + 1) // 2, ceil(4 * len(able) ** 0.5))
    nodes, weights = np.polynomial.legendre.leggauss(number)
    y = (nodes[:, None] + 1) / 2
    # [2, Y, n+1]: subsets with at most t of each class so far, one of which is the winner; none is
    subsets = np.zeros((2, len(y), n + 1))
    subsets[1] = others
    for votes, value in able:
        ways = _binomials(votes, t)
        reaching = ways[t] * subsets[:, :, :-t]
        # by ways[:t], row by row; as a filter, for np.convolve would be called for each row
        subsets = np.asarray(lfilter(ways[:t], [1.0, 0.0], subsets)) if t > 1 else subsets
        subsets[:, :, t:] += y * reaching
        subsets[0, :, t:] += value * reaching[1]
    return weights / 2 @ subsets[0]


def _binomials(m: int, degree: int) -> Floats:
    return np.array([comb(m, i) for i in range(degree + 1)], dtype=np.float64)
