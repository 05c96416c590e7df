"""Every number of an evaluation, from its responses and verdicts: docs/benchmarks.md defines them.

P problems, n responses to each, K values of k.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nemo_algos.algorithms.core.pass_at_k import ucc_at_k
from nemo_algos.config import install
from nemo_algos.lab.evals.metrics import verdicts
from nemo_algos.lab.evals.metrics.bootstrap import Bootstrap, or_none
from nemo_algos.lab.evals.metrics.diversity import Diversity, diversity, edges
from nemo_algos.lab.evals.metrics.settings import Measure
from nemo_algos.lab.evals.problem import Evaluation
from nemo_algos.processes import fresh

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
    ks, ids = verdicts.powers_of_two(n), [problem.id for problem in evaluation.problems]
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
