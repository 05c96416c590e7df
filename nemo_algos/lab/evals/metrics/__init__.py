"""Every number of an evaluation, from its responses and verdicts: docs/benchmarks.md defines them.

P problems, n responses to each, K values of k. maj@k is exact: the chance that the most frequent
answer among k of the n responses is right.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from math import ceil, comb
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nemo_algos.algorithms.core.pass_at_k import (
    best_at_k,
    best_at_k_bootstrap,
    pass_at_k,
    pass_hat_k,
    ucc_at_k,
)
from nemo_algos.extras import install
from nemo_algos.lab.evals.metrics.diversity import Diversity, diversity, edges
from nemo_algos.lab.evals.problem import Evaluation
from nemo_algos.lab.evals.schema import Measure
from nemo_algos.processes import fresh

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]
WORTH_PROCESSES = 100_000  # pairs of responses: below, starting processes takes longer
LARGEST = 1000  # C(1029, 514) is the last that fits a float64
SPELLING = re.compile(r"\s|\$|\\left(?![a-z])|\\right(?![a-z])|\.+\s*$")


class Bootstrap:
    """One set of resamples of the problems, for every number of an evaluation: they vary together.

    The resamples go with the problems' ids [P], not with their order.
    """

    def __init__(self, ids: Sequence[str], resamples: int, seed: int):
        problems = len(ids)
        chances = np.full(problems, 1 / problems)
        draws = np.random.default_rng(seed).multinomial(problems, chances, resamples)
        rank = np.argsort(np.argsort(ids))
        self._times = draws[:, rank].astype(np.float64)  # [R, P]: how often each is drawn

    def mean(self, values: Floats) -> tuple[Floats, Floats, Floats]:
        """The mean over problems and the ends of its 95 % interval. [P, M] -> [M] each.

        A nan is left out, of every resample too. The ends are nan where fewer than 2 are left.
        """
        known = np.isfinite(values)
        filled = np.where(known, values, 0.0)
        with np.errstate(invalid="ignore"):
            mean = filled.sum(0) / known.sum(0)
            means = (self._times @ filled) / (self._times @ known)
        ends = np.full((2, len(mean)), np.nan)
        for column in np.flatnonzero(known.sum(0) >= 2):
            ends[:, column] = np.nanpercentile(means[:, column], [2.5, 97.5])
        return mean, ends[0], ends[1]

    def interval(self, values: Floats) -> dict[str, float | None]:
        """[P] -> {"value", "low", "high"}; None where there is none."""
        mean, low, high = self.mean(values[:, None])
        return {"value": or_none(mean)[0], "low": or_none(low)[0], "high": or_none(high)[0]}

    def curve(self, values: Floats, ks: Sequence[int]) -> dict[str, list[Any]]:
        """[P, K] -> {"k", "value", "low", "high"}, lists of K."""
        mean, low, high = self.mean(values)
        return {"k": list(ks), "value": or_none(mean), "low": or_none(low), "high": or_none(high)}


def or_none(values: Floats) -> list[float | None]:
    """nan is no JSON."""
    numbers: list[float | None] = values.tolist()
    for i in np.flatnonzero(~np.isfinite(values)):
        numbers[i] = None
    return numbers


class Encoder(Protocol):
    """What is used of a `SentenceTransformer`."""

    def encode(self, sentences: list[str], /) -> Any:
        """The vectors [U, D] of texts [U]."""
        ...


def measure(
    evaluation: Evaluation,
    settings: Measure | None = None,
    *,
    workers: int = 1,
    progress: Progress | None = None,
    encoder: Encoder | None = None,
    judged: dict[str, NDArray[np.float64]] | None = None,
) -> dict[str, Any]:
    """JSON-able; the keys are in docs/benchmarks.md.

    workers: processes that share the problems' texts (started by spawn: in a script, call it under
    `if __name__ == "__main__"`). progress: called with (problems done, problems) after each.
    encoder: instead of loading settings.embedding_model. judged: further scalars [P], nan unknown.
    Raises ValueError: no problem, no response, or the embedding model cannot be loaded.
    """
    settings = settings or Measure()
    problems, n = evaluation.rewards.shape
    if not problems or not n:
        raise ValueError(f"there must be 1 problem and 1 response or more, got {problems} and {n}")
    ks = powers_of_two(n)
    ids = [problem.id for problem in evaluation.problems]
    bootstrap = Bootstrap(ids, settings.resamples, settings.seed)
    found = list[Diversity]()
    for each in _diversities(evaluation, settings, workers, encoder):
        found.append(each)
        if progress:
            progress(len(found), problems)
    curves_of_problems = []
    counts_of_problems = []
    for each in found:
        curves_of_problems.append([ucc_at_k(sizes, n, ks) for sizes in each.sizes])
        counts_of_problems.append([len(sizes) for sizes in each.sizes])
    ucc = np.array(curves_of_problems)  # [P,T,K]
    clusters = np.array(counts_of_problems)  # [P,T]
    scalars = verdict_scalars(evaluation) | {"ucr": clusters[:, 0] / n}
    for name in found[0].scalars:
        scalars[name] = np.array([each.scalars[name] for each in found])
    scalars |= judged or {}
    curves = verdict_curves(evaluation, ks) | {"ucc@k": ucc[:, 0]}
    unknown = {}
    for name, values in scalars.items():
        unknown[name] = int(np.isnan(values).sum())
    levels = {}
    for column, t in enumerate(settings.thresholds, start=1):
        levels[str(t)] = column
    return {
        "benchmark": evaluation.benchmark,
        "problems": problems,
        "samples": n,
        "ids": ids,
        "correct": evaluation.correct.sum(1).tolist(),
        "statuses": dict(evaluation.statuses),
        "scalars": {k: bootstrap.interval(v) for k, v in scalars.items() if unknown[k] < problems},
        "curves": {name: bootstrap.curve(values, ks) for name, values in curves.items()},
        "ucc_by_threshold": {t: bootstrap.curve(ucc[:, i], ks) for t, i in levels.items()},
        "clusters_by_threshold": {t: bootstrap.interval(clusters[:, i]) for t, i in levels.items()},
        "histograms": _histograms(found),
        "per_problem": {
            "mean": scalars["mean"].tolist(),
            "clusters": clusters[:, 0].tolist(),
            "length/tokens": or_none(scalars["length/tokens"]),
        },
        "excluded": {name: count for name, count in unknown.items() if count},
        "settings": settings.model_dump(),
    }


def load(model: str) -> Encoder:
    """A sentence-transformers model, of which a text's first `max_seq_length` tokens are read.

    Raises ValueError where sentence-transformers is not installed.
    """
    try:
        from sentence_transformers import SentenceTransformer  # pyright: ignore
    except ImportError as error:
        raise ValueError(
            "embedding similarity needs sentence-transformers: remove embedding from similarities, "
            f"or {install('sentence-transformers', 'embeddings')}"
        ) from error
    return SentenceTransformer(model)


def embed(encoder: Encoder, responses: Iterable[list[str]]) -> Iterator[NDArray[np.floating]]:
    """[U, D] for each problem's different responses, sorted: what `Texts.unique` holds."""
    for texts in responses:
        yield np.asarray(encoder.encode(sorted(set(texts))))


def _diversities(
    evaluation: Evaluation, settings: Measure, workers: int, encoder: Encoder | None
) -> Iterator[Diversity]:
    vectors: Iterator[Any] = repeat(None)
    if settings.embedding_model:
        vectors = embed(encoder or load(settings.embedding_model), evaluation.responses)
    work = (evaluation.responses, evaluation.correct, repeat(settings), vectors)
    problems, n = evaluation.rewards.shape
    if workers == 1 or problems * n**2 < WORTH_PROCESSES:
        yield from map(diversity, *work)
    else:
        with fresh(workers) as processes:
            yield from processes.map(diversity, *work)


def _histograms(found: list[Diversity]) -> dict[str, dict[str, list[float]]]:
    out = {}
    for name in found[0].histograms:
        every, correct = np.sum([each.histograms[name] for each in found], axis=0).tolist()
        out[name] = {"edges": edges(name).tolist(), "all": every, "correct": correct}
    return out


def powers_of_two(n: int) -> list[int]:
    """1, 2, 4, ... up to n, and n."""
    return [2**i for i in range(n.bit_length()) if 2**i < n] + [n]


def verdict_scalars(evaluation: Evaluation) -> dict[str, Floats]:
    """[P] each; nan where a problem has no such response."""
    correct = evaluation.correct
    tokens = np.where(evaluation.tokens < 0, np.nan, evaluation.tokens)
    rows = []
    for responses in evaluation.responses:
        rows.append([len(text) for text in responses])
    chars = np.array(rows, dtype=float)
    finished = evaluation.finished
    out = {"mean": evaluation.rewards.mean(1), "finished": _mean(finished, ~np.isnan(finished))}
    if evaluation.answers:
        boxed = []
        for answers in evaluation.answers:
            boxed.append([answer is not None for answer in answers])
        out["boxed"] = np.mean(boxed, axis=1)
    for unit, lengths in {"tokens": tokens, "chars": chars}.items():
        known = ~np.isnan(lengths)
        out[f"length/{unit}"] = _mean(lengths, known)
        out[f"length/{unit}/correct"] = _mean(lengths, known & correct)
        out[f"length/{unit}/wrong"] = _mean(lengths, known & ~correct)
    return out


def verdict_curves(evaluation: Evaluation, ks: list[int]) -> dict[str, Floats]:
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
        vote = normalise(answer)
        if vote is not None:
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
    able = []
    for votes, value in classes:
        if votes >= t:
            able.append((votes, value))
    others = _binomials(n - sum(votes for votes, _ in able), n)  # free: none of them reaches t
    # so many are exact to a float64's rounding for a polynomial of positive terms
    number = min((len(able) + 1) // 2, ceil(4 * len(able) ** 0.5))
    nodes, weights = np.polynomial.legendre.leggauss(number)
    y = (nodes[:, None] + 1) / 2
    # [2, Y, n+1]: subsets with at most t of each class so far, one of which is the winner; none is
    from scipy.signal import lfilter  # half a second, for majorities alone

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
