"""All that is read off the texts of one problem's responses. Loads no torch; runs in a worker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_algos.evals.metrics.bleu import self_bleu
from nemo_algos.evals.metrics.clusters import cluster_sizes
from nemo_algos.evals.metrics.settings import Measure
from nemo_algos.evals.metrics.similarity import MATRICES, cosine, edit_pairs, pairs
from nemo_algos.evals.metrics.texts import Texts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 50


@dataclass(frozen=True)
class Diversity:
    """sizes: of the clusters of right responses, at ucc_threshold and then at each of thresholds.
    scalars: nan where there are no two responses. histograms {name: [2, BINS]}: pairs of all, and
    of right responses."""

    sizes: list[Ints]
    scalars: dict[str, float]
    histograms: dict[str, Ints]


def diversity(
    responses: list[str],
    correct: NDArray[np.bool_],
    settings: Measure,
    vectors: NDArray[np.floating] | None = None,
) -> Diversity:
    """responses [n], correct [n]; vectors [U, D]: embeddings of the different texts, sorted."""
    texts = Texts.of(responses)
    right = texts.index[correct]
    matrices = _matrices(texts, settings, vectors)
    members = np.bincount(right, minlength=len(texts.unique))
    thresholds = [settings.ucc_threshold, *settings.thresholds]
    sizes = cluster_sizes(matrices[settings.ucc_similarity], members, thresholds, settings.linkage)
    found = {name: (pairs(m, texts.index), pairs(m, right)) for name, m in matrices.items()}
    if settings.edit_unit == "char" and "edit" in settings.similarities:
        number, seed = settings.edit_pairs, settings.seed
        found["edit"] = (
            edit_pairs(texts, texts.index, number, seed),
            edit_pairs(texts, right, number, seed),
        )
    scalars = {"self_bleu": self_bleu(texts)} if settings.self_bleu else {}
    for name, (every, of_right) in found.items():
        scalars[f"similarity/{name}"] = _mean(every)
        scalars[f"similarity/{name}/correct"] = _mean(of_right)
    return Diversity(sizes, scalars, {k: _histograms(k, v) for k, v in found.items()})


def edges(similarity: str) -> Floats:
    """[BINS + 1]"""
    return np.linspace(-1.0 if similarity == "embedding" else 0.0, 1.0, BINS + 1)


def _matrices(
    texts: Texts, settings: Measure, vectors: NDArray[np.floating] | None
) -> dict[str, Floats]:
    found = {}
    for name in settings.similarities:
        if name == "embedding":
            assert vectors is not None
            found[name] = cosine(vectors)
        elif (name, settings.edit_unit) != ("edit", "char"):
            found[name] = MATRICES[name](texts)
    for matrix in found.values():
        np.fill_diagonal(matrix, 1.0)  # equal texts are alike, even empty ones
    return found


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _histograms(name: str, sides: tuple[Floats, ...]) -> Ints:
    limits = edges(name)
    clipped = (side.clip(limits[0], limits[-1]) for side in sides)  # rounding: 1 + 1e-16
    return np.array([np.histogram(side, limits)[0] for side in clipped])
