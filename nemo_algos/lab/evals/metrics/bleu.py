"""Self-BLEU (Zhu et al. 2018): BLEU-4 of each response against all others to the same problem."""

import numpy as np
from numpy.typing import NDArray

from nemo_algos.lab.evals.metrics.similarity import Floats, Texts

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
    gram, vocabulary, matched = np.zeros_like(tokens), tokens.max(initial=0) + 1, []
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
