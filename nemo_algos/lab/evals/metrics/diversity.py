"""All that is read off the texts of one problem's responses. Loads no torch; runs in a worker."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.metrics.pairwise import cosine_similarity

from nemo_algos.lab.evals.metrics.bleu import Ints, self_bleu
from nemo_algos.lab.evals.metrics.settings import Measure
from nemo_algos.lab.evals.metrics.similarity import MATRICES, Floats, Texts, edit_pairs, pairs

BINS = 50
ROUNDING = 1e-9  # a similarity this little under the threshold has reached it


@dataclass(frozen=True)
class Diversity:
    """What the texts of one problem's responses show.

    sizes: of the clusters of right responses, at ucc_threshold, then at each of thresholds;
    scalars: nan of fewer than two; histograms {name: [2, BINS]}: pairs of all, and of right ones.
    """

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
        drawn = settings.edit_pairs, settings.seed
        found["edit"] = edit_pairs(texts, texts.index, *drawn), edit_pairs(texts, right, *drawn)
    scalars = {"self_bleu": self_bleu(texts)} if settings.self_bleu else {}
    for name, (every, of_right) in found.items():
        scalars[f"similarity/{name}"] = _mean(every)
        scalars[f"similarity/{name}/correct"] = _mean(of_right)
    histograms = {}
    for name, sides in found.items():
        limits = edges(name)
        clipped = (side.clip(limits[0], limits[-1]) for side in sides)  # rounding: 1 + 1e-16
        histograms[name] = np.array([np.histogram(side, limits)[0] for side in clipped])
    return Diversity(sizes, scalars, histograms)


def cluster_sizes(
    similarity: Floats, members: Ints, thresholds: Sequence[float], method: str
) -> list[Ints]:
    """For each threshold the number of responses in each cluster.

    similarity [U, U]; members [U]: responses with that text (0: it takes no part). method: `single`
    joins what a chain of similarities >= threshold connects, `complete` only what is so pairwise.
    """
    present = np.flatnonzero(members)
    members = members[present]
    if len(present) < 2:
        return [members for _ in thresholds]
    distance = 1 - similarity[np.ix_(present, present)].clip(max=1)
    tree = linkage(squareform(distance, checks=False), method)
    labels = [fcluster(tree, 1 - t + ROUNDING, "distance") - 1 for t in thresholds]
    return [np.bincount(label, members).astype(np.int64) for label in labels]


def edges(similarity: str) -> Floats:
    """[BINS + 1]: the ends of a histogram's bins."""
    return np.linspace(-1.0 if similarity == "embedding" else 0.0, 1.0, BINS + 1)


def _matrices(
    texts: Texts, settings: Measure, vectors: NDArray[np.floating] | None
) -> dict[str, Floats]:
    found = {}
    for name in settings.similarities:
        if name == "embedding":
            assert vectors is not None
            found[name] = cosine_similarity(np.asarray(vectors, dtype=np.float64))
        elif (name, settings.edit_unit) != ("edit", "char"):
            found[name] = MATRICES[name](texts)
    for matrix in found.values():
        np.fill_diagonal(matrix, 1.0)  # equal texts are alike, even empty ones
    return found


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else float("nan")
