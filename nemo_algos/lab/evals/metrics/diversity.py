"""What the texts of one problem's responses show: how alike they are, and how many solutions.

n responses, U different ones, V different tokens; the matrices are [U, U] float64. Loads no torch;
runs in a worker.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import LCSseq, Levenshtein
from rapidfuzz.process import cdist, cpdist
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_array
from scipy.spatial.distance import squareform
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.metrics.pairwise import cosine_similarity

from nemo_algos.lab.evals.schema import Measure

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
    numbered = []
    for text in texts:
        words = token.findall(text.lower())
        numbered.append([numbers.setdefault(word, len(numbers)) for word in words])
    return numbered


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
        first = first[drawn]
        second = second[drawn]
    ordered = np.sort(index)  # the same pairs whatever the order of the responses
    left = [texts.unique[i] for i in ordered[first]]
    right = [texts.unique[i] for i in ordered[second]]
    return cpdist(left, right, scorer=Levenshtein.normalized_similarity, dtype=np.float64)


def _as_characters(numbered: list[list[int]]) -> list[str]:
    """For rapidfuzz, which is fastest on strings: one character per token."""
    return ["".join(map(chr, tokens)) for tokens in numbered]


Ints = NDArray[np.int64]

ORDERS = 4
EPSILON = 0.1  # nltk's SmoothingFunction.method1: what stands for no match


def self_bleu(texts: Texts) -> float:
    """The mean over the n responses; nan where n < 2. It equals nltk's sentence_bleu with method1.

    An n-gram counts up to its largest count among the other responses, which is the second largest
    of all wherever that is less than its own. So every response is scored in one pass.
    """
    if len(texts.index) < 2:
        return float("nan")
    members = np.bincount(texts.index)
    lengths = np.array([len(t) for t in texts.tokens])
    matched, total = _matches(texts, members, lengths)
    precision = np.where(matched > 0, matched, EPSILON) / np.maximum(total, 1)
    score = np.exp(np.log(precision).mean(0)) * _brevity(lengths, members)
    return float(np.average(np.where(matched[0] > 0, score, 0.0), weights=members))


def _matches(texts: Texts, members: Ints, lengths: Ints) -> tuple[Floats, Ints]:
    """Clipped n-gram matches and n-grams of each text, [ORDERS, U] both."""
    tokens = np.array([i for text in texts.tokens for i in text], dtype=np.int64)
    text = np.repeat(np.arange(len(lengths)), lengths)
    left = np.repeat(lengths.cumsum(), lengths) - np.arange(len(tokens))  # tokens to the text's end
    gram = np.zeros_like(tokens)
    vocabulary = tokens.max(initial=0) + 1
    matched = []
    for order in range(ORDERS):
        starts = np.flatnonzero(left > order)
        gram[starts] = gram[starts] * vocabulary + tokens[starts + order]
        # numbered anew, so that the next product stays small
        gram[starts] = np.unique(gram[starts], return_inverse=True)[1]
        matched.append(_clipped(gram[starts], text[starts], members))
    return np.array(matched), np.array([(lengths - order).clip(min=0) for order in range(ORDERS)])


def _clipped(gram: Ints, text: Ints, members: Ints) -> Floats:
    """[N], [N] -> [U]: each n-gram counts up to its second largest count in a response."""
    key, count = np.unique(gram * len(members) + text, return_counts=True)
    gram, text = np.divmod(key, len(members))
    twice = np.repeat(np.arange(len(key)), np.minimum(members[text], 2))
    ranked = twice[np.lexsort((count[twice], gram[twice]))]
    other = ranked[:-1][gram[ranked][1:] == gram[ranked][:-1]]  # all but each n-gram's largest
    second = np.zeros(gram.max(initial=-1) + 1, dtype=np.int64)
    second[gram[other]] = count[other]  # of several the last, so the largest
    return np.bincount(text, np.minimum(count, second[gram]), len(members)).astype(np.float64)


def _brevity(lengths: Ints, members: Ints) -> Floats:
    """exp(1 - r/h) for a response of h tokens shorter than r, the closest (shorter) other's."""
    gap = np.abs(lengths[:, None] - lengths)
    gap[np.diag_indices_from(gap)] = np.where(members > 1, 0, np.iinfo(np.int64).max // 4)
    closest = np.where(gap == gap.min(1, keepdims=True), lengths, lengths.max()).min(1)
    return np.exp(np.minimum(0, 1 - closest / np.maximum(lengths, 1)))


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
    found = {}
    for name, m in matrices.items():
        found[name] = (pairs(m, texts.index), pairs(m, right))
    if settings.edit_unit == "char" and "edit" in settings.similarities:
        drawn = functools.partial(edit_pairs, texts, number=settings.edit_pairs, seed=settings.seed)
        found["edit"] = (drawn(texts.index), drawn(right))
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
    if len(values):
        return float(values.mean())
    return float("nan")
