"""How alike two responses to a problem are, 0 to 1, for all pairs.

n responses, U different ones, V different tokens; the matrices are [U, U] float64.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import LCSseq, Levenshtein
from rapidfuzz.process import cdist, cpdist
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.metrics.pairwise import cosine_similarity

Floats = NDArray[np.float64]

# Words, and every other printed character by itself: "x=5" and "x=7" must differ, and they do not
# in scikit-learn's default, which drops tokens of one character.
TOKEN = re.compile(r"\w+|[^\w\s]")
ROUGE_TOKEN = re.compile(r"[a-z0-9]+")  # rouge-score's


@dataclass(frozen=True)
class Texts:
    """The n responses to a problem; unique [U]: sorted, index [n]: each response's place in it."""

    unique: list[str]
    index: NDArray[np.int64]

    @classmethod
    def of(cls, responses: list[str]) -> Self:
        unique, index = np.unique(np.array(responses, dtype=object), return_inverse=True)
        return cls(unique.tolist(), index)

    @cached_property
    def tokens(self) -> list[list[int]]:
        """[U]: of the lower-cased text."""
        return number(self.unique, TOKEN)

    @cached_property
    def counts(self) -> csr_array:
        """[U, V] float64: how often each token occurs."""
        columns = np.concatenate([np.array(t, dtype=np.int64) for t in self.tokens])
        ends = np.cumsum([0, *map(len, self.tokens)])
        shape = (len(self.unique), int(columns.max(initial=0)) + 1)
        counts = csr_array((np.ones(len(columns)), columns, ends), shape=shape)
        counts.sum_duplicates()
        return counts


def number(texts: list[str], token: re.Pattern[str]) -> list[list[int]]:
    """Each text's tokens, numbered from 0 in the order in which they first occur."""
    numbers: dict[str, int] = {}
    return [
        [numbers.setdefault(word, len(numbers)) for word in token.findall(text.lower())]
        for text in texts
    ]


def tfidf(texts: Texts) -> Floats:
    """Cosine of scikit-learn's TF-IDF vectors: idf = ln((1+n) / (1+df)) + 1, df over all n."""
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


MATRICES = {matrix.__name__: matrix for matrix in (tfidf, rouge_l, jaccard, edit)}


def of_responses(similarity: str, responses: list[str]) -> Floats:
    """[n, n]: of every response with every other, in their order; of equal texts 1."""
    texts = Texts.of(responses)
    matrix = MATRICES[similarity](texts)
    np.fill_diagonal(matrix, 1.0)
    return matrix[np.ix_(texts.index, texts.index)]


def pairs(matrix: Floats, index: NDArray[np.int64]) -> Floats:
    """[n(n-1)/2]: the similarities of responses i < j, for the places [n] of the responses."""
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
