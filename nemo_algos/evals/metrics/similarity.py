"""How alike two responses are, 0 to 1, for all pairs of the U different ones: [U, U] float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import LCSseq, Levenshtein
from rapidfuzz.process import cdist, cpdist
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.metrics.pairwise import cosine_similarity

from nemo_algos.evals.metrics.texts import ROUGE_TOKEN, Texts, number

Floats = NDArray[np.float64]


def tfidf(texts: Texts) -> Floats:
    """Cosine of TF-IDF vectors, scikit-learn's: idf = ln((1+n) / (1+df)) + 1, df over all n
    responses to the problem, right or wrong, repeated ones too."""
    # One problem's responses are the corpus: over a whole benchmark the problem's own words, which
    # all its responses share, would be rare and make any two of them alike.
    vectors = TfidfTransformer().fit(texts.counts[texts.index]).transform(texts.counts)
    return cosine_similarity(vectors)


def jaccard(texts: Texts) -> Floats:
    """Shared tokens / tokens of either, as sets."""
    present = csr_array(texts.counts > 0, dtype=np.float64)
    shared = (present @ present.T).toarray()
    sizes = shared.diagonal()
    return shared / np.maximum(sizes[:, None] + sizes - shared, 1)


def rouge_l(texts: Texts) -> Floats:
    """F1 of the longest common subsequence of words: 2 L / (words of one + words of the other)."""
    words = _as_characters(number(texts.unique, ROUGE_TOKEN))
    lengths = np.array([len(w) for w in words])
    common = cdist(words, words, scorer=LCSseq.similarity)
    return 2.0 * common / np.maximum(lengths[:, None] + lengths, 1)


def edit(texts: Texts) -> Floats:
    """1 - Levenshtein distance / length of the longer, in tokens."""
    tokens = _as_characters(texts.tokens)
    return cdist(tokens, tokens, scorer=Levenshtein.normalized_similarity, dtype=np.float64)


def cosine(vectors: NDArray[np.floating]) -> Floats:
    """Cosine of embeddings [U, D]; from -1."""
    return cosine_similarity(np.asarray(vectors, dtype=np.float64))


MATRICES: dict[str, Callable[[Texts], Floats]] = {
    "tfidf": tfidf,
    "rouge_l": rouge_l,
    "jaccard": jaccard,
    "edit": edit,
}


def pairs(matrix: Floats, index: NDArray[np.int64]) -> Floats:
    """The similarities of responses i < j, for the places [n] of the responses. [n(n-1)/2]"""
    return matrix[np.ix_(index, index)][np.triu_indices(len(index), 1)]


def edit_pairs(texts: Texts, index: NDArray[np.int64], number: int, seed: int) -> Floats:
    """`edit` in characters, for `number` pairs i < j drawn without replacement (all, if fewer)."""
    first, second = np.triu_indices(len(index), 1)
    if number < len(first):
        drawn = np.random.default_rng(seed).choice(len(first), number, replace=False)
        first, second = first[drawn], second[drawn]
    ordered = np.sort(index)  # the same pairs whatever the order of the responses
    left, right = ([texts.unique[i] for i in ordered[side]] for side in (first, second))
    return cpdist(left, right, scorer=Levenshtein.normalized_similarity, dtype=np.float64)


def _as_characters(numbered: list[list[int]]) -> list[str]:
    """For rapidfuzz, which is fastest on strings: one character per token."""
    return ["".join(map(chr, tokens)) for tokens in numbered]
