"""What is read off verdicts, answers and lengths, problem by problem. P problems, n responses."""

import numpy as np
from numpy.typing import NDArray

from nemo_algos.algorithms.core.pass_at_k import (
    best_at_k,
    best_at_k_bootstrap,
    pass_at_k,
    pass_hat_k,
)
from nemo_algos.lab.evals.metrics.majority import LARGEST, Floats, maj_at_k
from nemo_algos.lab.evals.problem import Evaluation


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
    correct, n = evaluation.correct, evaluation.rewards.shape[1]
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
