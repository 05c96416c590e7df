"""Every number of an evaluation, from its responses and verdicts: docs/benchmarks.md defines them.

P problems, n responses to each, K values of k.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nemo_algos.algorithms.core.pass_at_k import ucc_at_k
from nemo_algos.config import install
from nemo_algos.lab.evals.metrics import verdicts
from nemo_algos.lab.evals.metrics.diversity import Diversity, diversity, edges
from nemo_algos.lab.evals.problem import Evaluation
from nemo_algos.lab.evals.schema import Measure
from nemo_algos.processes import fresh

Floats = NDArray[np.float64]


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
    return [float(v) if np.isfinite(v) else None for v in values]


Progress = Callable[[int, int], None]
WORTH_PROCESSES = 100_000  # pairs of responses: below, starting processes takes longer


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
    ks = verdicts.powers_of_two(n)
    ids = [problem.id for problem in evaluation.problems]
    bootstrap = Bootstrap(ids, settings.resamples, settings.seed)
    found = list[Diversity]()
    for each in _diversities(evaluation, settings, workers, encoder):
        found.append(each)
        if progress:
            progress(len(found), problems)
    ucc = np.array([[ucc_at_k(sizes, n, ks) for sizes in each.sizes] for each in found])  # [P,T,K]
    clusters = np.array([[len(sizes) for sizes in each.sizes] for each in found])  # [P,T]
    scalars = verdicts.scalars(evaluation) | {"ucr": clusters[:, 0] / n}
    scalars |= {name: np.array([each.scalars[name] for each in found]) for name in found[0].scalars}
    scalars |= judged or {}
    curves = verdicts.curves(evaluation, ks) | {"ucc@k": ucc[:, 0]}
    unknown = {name: int(np.isnan(values).sum()) for name, values in scalars.items()}
    levels = {str(t): column for column, t in enumerate(settings.thresholds, start=1)}
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
        every, correct = np.sum([each.histograms[name] for each in found], axis=0)
        out[name] = {"edges": edges(name), "all": every, "correct": correct}
    return {name: {k: v.tolist() for k, v in sides.items()} for name, sides in out.items()}
