"""Similarities, clusters and Self-BLEU of texts: by hand, and against plain loops over pairs."""

import random
from collections import Counter
from functools import partial
from math import exp, log

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from nemo_algos.lab.evals.metrics.diversity import (
    TOKEN,
    Texts,
    cluster_sizes,
    edit,
    edit_pairs,
    jaccard,
    rouge_l,
    self_bleu,
    tfidf,
)

exactly = partial(np.testing.assert_allclose, rtol=0, atol=1e-12)


def made_up(seed, number=12, words=9):
    """Short texts over few words, so that they overlap; some repeated, some empty."""
    rng = random.Random(seed)
    vocabulary = ["let", "x", "=", "5", "Then", "+", "so", "yes", "\\frac", "2"]
    texts = [" ".join(rng.choices(vocabulary, k=rng.randint(0, words))) for _ in range(number)]
    return texts + rng.choices(texts, k=3)


def words(text):
    return TOKEN.findall(text.lower())


def test_equal_texts_are_one_and_all_are_in_order():
    texts = Texts.of(["b", "a", "b", ""])
    assert texts.unique == ["", "a", "b"] and texts.index.tolist() == [2, 1, 2, 0]


@pytest.mark.parametrize("seed", range(5))
def test_tfidf_is_scikit_learns_over_all_responses(seed):
    texts = [t for t in made_up(seed) if t]
    vectorizer = TfidfVectorizer(token_pattern=TOKEN.pattern)
    vectors = vectorizer.fit_transform(texts)
    ours = Texts.of(texts)
    exactly(tfidf(ours)[np.ix_(ours.index, ours.index)], (vectors @ vectors.T).toarray())


def lcs(one, other):
    row = [0] * (len(other) + 1)
    for a in one:
        last = 0
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], last + 1 if a == b else max(row[j], row[j - 1])
    return row[-1]


def levenshtein(one, other):
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


def jaccard_of(one, other):
    one, other = set(words(one)), set(words(other))
    return len(one & other) / len(one | other) if one | other else 0.0


def rouge_of(one, other):
    one, other = ([w for w in words(t) if w.isascii() and w.isalnum()] for t in (one, other))
    return 2 * lcs(one, other) / (len(one) + len(other)) if one or other else 0.0


def edit_of(one, other):
    one, other = words(one), words(other)
    return 1 - levenshtein(one, other) / max(len(one), len(other)) if one or other else 1.0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("matrix", "of"), [(jaccard, jaccard_of), (rouge_l, rouge_of), (edit, edit_of)]
)
def test_matrices_against_loops_over_pairs(matrix, of, seed):
    texts = Texts.of(made_up(seed))
    exactly(matrix(texts), [[of(a, b) for b in texts.unique] for a in texts.unique])


def test_more_tokens_than_there_are_characters_before_the_surrogates():
    many = [" ".join(f"w{i}" for i in range(60_000)), "w0 w59999 w55300"]
    exactly(rouge_l(Texts.of(many))[0, 1], 2 * 2 / 60_003)


def test_edit_by_character_of_all_pairs_and_of_some():
    """kitten to sitting: 3 edits of 7."""
    texts = Texts.of(["kitten", "sitting", "kitten"])
    want = [1 - 3 / 7, 1 - 3 / 7, 1.0]
    exactly(np.sort(edit_pairs(texts, texts.index, 3, seed=0)), want)
    texts = Texts.of(made_up(0, 40))
    every = edit_pairs(texts, texts.index, 10_000, seed=0)
    some = edit_pairs(texts, texts.index, 300, seed=0)
    assert len(every) == 43 * 42 // 2 and len(some) == 300
    assert abs(some.mean() - every.mean()) < 0.05
    assert not Counter(some.tolist()) - Counter(every.tolist())  # no pair twice
    exactly(edit_pairs(texts, texts.index[::-1], 300, seed=0), some)
    assert (edit_pairs(texts, texts.index, 300, seed=1) != some).any()


CHAIN = np.array([[1, 0.8, 0.3, 0], [0.8, 1, 0.7, 0], [0.3, 0.7, 1, 0], [0, 0, 0, 1.0]])


@pytest.mark.parametrize(
    ("method", "threshold", "sizes"),
    [
        ("single", 0.9, [1, 1, 1, 2]),
        ("single", 0.8, [1, 2, 2]),  # reached exactly
        ("single", 0.7, [2, 3]),  # 0 and 2 are 0.3 alike, but 1 is between them
        ("complete", 0.7, [1, 2, 2]),
        ("complete", 0.3, [2, 3]),
        ("single", 1e-6, [2, 3]),
    ],
)
def test_clusters_by_hand(method, threshold, sizes):
    """Four texts, the last of two responses."""
    members = np.array([1, 1, 1, 2])
    assert sorted(cluster_sizes(CHAIN, members, [threshold], method)[0]) == sizes


def test_clusters_of_right_responses_alone():
    """Without text 1 the chain is broken."""
    found = cluster_sizes(CHAIN, np.array([1, 0, 4, 0]), [0.7, 0.3], "single")
    assert [sorted(sizes) for sizes in found] == [[1, 4], [5]]
    assert [
        s.tolist() for s in cluster_sizes(CHAIN, np.array([0, 3, 0, 0]), [0.5, 0.9], "single")
    ] == [[3], [3]]
    assert cluster_sizes(CHAIN, np.zeros(4, int), [0.5], "complete")[0].tolist() == []


@pytest.mark.parametrize("method", ["single", "complete"])
def test_a_similarity_under_the_threshold_by_rounding_alone_has_reached_it(method):
    near = np.array([[1.0, 0.1 + 0.7], [0.1 + 0.7, 1.0]])  # 0.7999999999999999
    assert cluster_sizes(near, np.ones(2, int), [0.8, 0.8001], method)[0].tolist() == [2]
    assert cluster_sizes(near, np.ones(2, int), [0.8001], method)[0].tolist() == [1, 1]


def bleu(hypothesis, references):
    """BLEU-4 of token lists as in nltk with method1, written out."""
    score = 0.0
    for order in range(1, 5):
        grams = [
            Counter(tuple(t[i : i + order]) for i in range(len(t) - order + 1))
            for t in (hypothesis, *references)
        ]
        matched = sum(min(c, max(r[g] for r in grams[1:])) for g, c in grams[0].items())
        if order == 1 and not matched:
            return 0.0
        score += log((matched or 0.1) / max(sum(grams[0].values()), 1)) / 4
    closest = min((abs(len(r) - len(hypothesis)), len(r)) for r in references)[1]
    return exp(score) * exp(min(0, 1 - closest / len(hypothesis)))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("length", [2, 9, 40])
def test_self_bleu_against_a_loop_over_responses(seed, length):
    texts = made_up(seed, 10, length)
    tokens = [words(t) for t in texts]
    want = [bleu(t, tokens[:i] + tokens[i + 1 :]) for i, t in enumerate(tokens)]
    exactly(self_bleu(Texts.of(texts)), np.mean(want))
    assert np.isnan(self_bleu(Texts.of(texts[:1])))
