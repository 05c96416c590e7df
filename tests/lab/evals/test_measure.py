"""measure: the worked example of docs/benchmarks.md, maj@k, what is left out, what is the same."""

import sys
from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from pydantic import ValidationError

from nemo_algos.algorithms.core.pass_at_k import pass_at_k
from nemo_algos.lab.evals.metrics import (
    LARGEST,
    Bootstrap,
    load,
    maj_at_k,
    measure,
    normalise,
    plurality,
)
from nemo_algos.lab.evals.problem import Evaluation, Problem
from nemo_algos.lab.evals.schema import Measure

RESPONSES = [
    "2 + 3 = 5, so x is 5",
    "2 + 3 = 5, so x = 5",
    "count on from two: three, four, five",
    "it is 7",
]


def exactly(want):
    return pytest.approx(want, abs=1e-12, rel=0)


def evaluation(responses, rewards, answers=None, tokens=None, finished=None):
    """Of problems p0, p1, ...; unless given, an answer each, unknown tokens, all finished."""
    rewards = np.array(rewards, dtype=float)
    return Evaluation(
        "made up",
        [Problem(f"p{i}", "", "5") for i in range(len(responses))],
        responses,
        rewards,
        [[str(r) for r in row] for row in rewards] if answers is None else answers,
        np.full(rewards.shape, -1) if tokens is None else np.array(tokens),
        np.ones(rewards.shape) if finished is None else np.array(finished, float),
        Counter(ok=rewards.size),
    )


def worked_example(**changes):
    answers = [["5", "5", "5", "7"]]
    return evaluation([RESPONSES], [[1, 1, 1, 0]], **({"answers": answers} | changes))


def mixed(problems=6, n=8, seed=0):
    """Some problems without a right response, with one, with all; texts that repeat."""
    rng = np.random.default_rng(seed)
    rewards = (np.arange(n) < np.array([0, 1, n, 3, 5, 2][:problems])[:, None]).astype(float)
    rewards = rng.permuted(rewards, axis=1)
    word = np.array(["let", "x", "=", "5", "then", "so", "+"])
    texts = [[" ".join(rng.choice(word, rng.integers(3, 9))) for _ in range(n)] for _ in rewards]
    texts[2][:3] = [texts[2][0]] * 3
    answers = [[str(a) if a else None for a in row] for row in rng.integers(0, 4, rewards.shape)]
    tokens = rng.integers(1, 50, rewards.shape)
    return evaluation(texts, rewards, answers, tokens, rng.random(rewards.shape) < 0.7)


def values(out, part):
    return {name: each["value"] for name, each in out[part].items()}


def test_the_worked_example():
    out = measure(worked_example())
    assert values(out, "curves") | {"best@k (bootstrap)": None} == {
        "pass@k": exactly([0.75, 1, 1]),
        "pass^k": exactly([0.75, 0.5, 0]),
        "best@k": exactly([0.75, 1, 1]),
        "maj@k": exactly([0.75, 0.75, 1]),
        "ucc@k": exactly([0.75, 4 / 3, 2]),
        "best@k (bootstrap)": None,
    }
    assert {tuple(curve["k"]) for curve in out["curves"].values()} == {(1, 2, 4)}
    scalars = values(out, "scalars")
    assert scalars["ucr"] == 2 / 4 and scalars["boxed"] == 1
    assert out["scalars"]["mean"] == {"value": 0.75, "low": None, "high": None}  # of one problem
    assert out["curves"]["pass@k"]["low"] == [None] * 3
    assert out["correct"] == [3] and out["per_problem"]["clusters"] == [2]
    assert out["ids"] == ["p0"] and out["statuses"] == {"ok": 4}
    assert sum(out["histograms"]["tfidf"]["all"]) == 6
    assert sum(out["histograms"]["tfidf"]["correct"]) == 3


def test_what_is_measured_of_mixed_verdicts():
    """Lengths and similarities by plain loops, and how many problems had none."""
    given = mixed()
    out = measure(given)
    scalars, right = out["scalars"], given.correct
    assert scalars["mean"]["value"] == exactly(given.rewards.mean())
    assert scalars["finished"]["value"] == exactly(given.finished.mean())
    boxed = [a is not None for row in given.answers for a in row]
    assert scalars["boxed"]["value"] == exactly(np.mean(boxed))
    rows = list(zip(given.tokens, right, strict=True))
    of_right = [t[r].mean() for t, r in rows if r.any()]
    of_wrong = [t[~r].mean() for t, r in rows if not r.all()]
    assert scalars["length/tokens"]["value"] == exactly(given.tokens.mean())
    assert scalars["length/tokens/correct"]["value"] == exactly(np.mean(of_right))
    assert scalars["length/tokens/wrong"]["value"] == exactly(np.mean(of_wrong))
    chars = [len(t) for row in given.responses for t in row]
    assert scalars["length/chars"]["value"] == exactly(np.mean(chars))
    two = {f"similarity/{s}/correct": 2 for s in ("tfidf", "rouge_l", "jaccard", "edit")}
    lengths = {f"length/{u}/{s}": 1 for u in ("tokens", "chars") for s in ("correct", "wrong")}
    assert out["excluded"] == two | lengths
    assert out["per_problem"]["length/tokens"] == exactly(given.tokens.mean(1).tolist())


def test_similarities_are_of_pairs_then_of_problems():
    """Jaccard: a b, a c, a d are 1/3 alike; in the other problem two are equal, and unlike one."""
    given = evaluation([["a b", "a c", "a d"], ["e", "e", "f"]], [[1, 1, 0], [1, 0, 1]])
    out = measure(given, Measure(similarities=["tfidf", "jaccard"]))
    scalars = values(out, "scalars")
    assert scalars["similarity/jaccard"] == exactly((1 / 3 + 1 / 3) / 2)
    assert scalars["similarity/jaccard/correct"] == exactly((1 / 3 + 0) / 2)
    histogram = out["histograms"]["jaccard"]
    filled = [(histogram["edges"][i], c) for i, c in enumerate(histogram["all"]) if c]
    assert filled == [(0.0, 2), (exactly(0.32), 3), (0.98, 1)]
    assert sum(histogram["correct"]) == 2


def test_a_pair_of_empty_responses_is_alike():
    out = measure(evaluation([["", ""]], [[1, 1]]))
    similar = {k: v for k, v in values(out, "scalars").items() if k.startswith("similarity")}
    assert set(similar.values()) == {1.0} and len(similar) == 8
    assert out["per_problem"]["clusters"] == [1]


def test_a_benchmark_without_answers_has_no_majority_and_no_boxes():
    out = measure(worked_example(answers=[]))
    assert "maj@k" not in out["curves"] and "boxed" not in out["scalars"]


def test_an_empty_box_is_the_format_but_no_vote():
    out = measure(worked_example(answers=[["5", "", None, "7"]]))
    assert out["scalars"]["boxed"]["value"] == 3 / 4
    assert out["curves"]["maj@k"]["value"][0] == 1 / 4


def test_unknown_token_counts_are_left_out():
    out = measure(worked_example(tokens=[[10, -1, 20, -1]]))
    assert out["scalars"]["length/tokens"]["value"] == 15
    assert out["scalars"]["length/tokens/correct"]["value"] == 15
    assert out["excluded"]["length/tokens/wrong"] == 1
    out = measure(worked_example())
    assert "length/tokens" not in out["scalars"] and out["excluded"]["length/tokens"] == 1
    assert out["per_problem"]["length/tokens"] == [None]


def test_the_order_of_problems_and_of_responses_does_not_matter():
    given, rng = mixed(), np.random.default_rng(1)
    rows, columns = rng.permutation(6), rng.permutation(8)

    def moved(table):
        return [[table[i][j] for j in columns] for i in rows]

    turned = replace(
        given,
        problems=[given.problems[i] for i in rows],
        responses=moved(given.responses),
        rewards=np.array(moved(given.rewards)),
        answers=moved(given.answers),
        tokens=np.array(moved(given.tokens)),
        finished=np.array(moved(given.finished)),
    )
    settings = Measure(edit_unit="char", edit_pairs=5, linkage="complete")
    one, other = (flat(measure(each, settings)) for each in (given, turned))
    assert one.keys() == other.keys() and len(one) > 200
    by_order = ("ids", "correct", "per_problem", "curves/best@k (bootstrap)")
    for name, value in one.items():
        if not name.startswith(by_order):
            assert other[name] == (exactly(value) if isinstance(value, float) else value), name
    assert [other[f"ids/{i}"] for i in range(6)] == [f"p{i}" for i in rows]
    assert [other[f"correct/{i}"] for i in range(6)] == [one[f"correct/{i}"] for i in rows]


def flat(tree, path=""):
    """Nested containers as {"a/b/0": leaf}."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    out = {}
    for key, value in items:
        name = f"{path}/{key}".strip("/")
        out |= flat(value, name) if isinstance(value, dict | list) else {name: value}
    return out


class Fake:
    """Embeds a text as its numbers of a and of b."""

    def __init__(self):
        self.seen = []

    def encode(self, sentences):
        self.seen.append(sentences)
        return np.array([[t.count("a"), t.count("b")] for t in sentences], dtype=np.float32)


EMBEDDED = Measure(similarities=["tfidf", "embedding"], embedding_model="fake")


def test_embeddings():
    """aab, b, aab: cosines 1/sqrt(5), 1, 1/sqrt(5)."""
    fake = Fake()
    out = measure(evaluation([["aab", "b", "aab"]], np.ones((1, 3))), EMBEDDED, encoder=fake)
    assert fake.seen == [["aab", "b"]]
    similar = out["scalars"]["similarity/embedding"]["value"]
    assert similar == pytest.approx((1 + 2 / 5**0.5) / 3, abs=1e-7)
    assert out["histograms"]["embedding"]["edges"][0] == -1


def test_processes_give_the_same_and_progress_is_told():
    done = []
    calls = {"encoder": Fake(), "progress": lambda *at: done.append(at)}
    alone = measure(mixed(3), EMBEDDED, **calls)
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert measure(mixed(3), EMBEDDED, workers=2, **calls) == alone
    assert done[3:] == done[:3]


def test_a_missing_sentence_transformers_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ValueError, match=r"pip install sentence-transformers .*--extra embeddings"):
        load("a-model")


def test_intervals_by_a_plain_bootstrap():
    """[R, P] indices drawn and averaged, for 200 problems; another seed, another set."""
    rng = np.random.default_rng(0)
    scores = rng.random(200)
    scores[:5] = np.nan
    ids = [f"{i:03}" for i in range(200)]
    got = Bootstrap(ids, 4000, 0).interval(scores)
    means = [np.nanmean(scores[rng.integers(0, 200, 200)]) for _ in range(4000)]
    assert got["value"] == exactly(np.nanmean(scores))
    assert [got["low"], got["high"]] == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=2e-3)
    assert (
        got == Bootstrap(ids, 4000, 0).interval(scores) != Bootstrap(ids, 4000, 1).interval(scores)
    )


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"similarities": ["jaccard"]}, "ucc_similarity=tfidf"),
        ({"ucc_similarity": "edit", "edit_unit": "char"}, "edit_unit"),
        ({"similarities": ["tfidf", "embedding"]}, "embedding_model"),
        ({"embedding_model": "x"}, "embedding_model"),
        ({"ucc_threshold": 0.0}, " 0"),
        ({"thresholds": [1.5]}, " 1"),
        ({"treshold": 0.5}, "treshold"),
    ],
)
def test_settings_that_cannot_be(settings, match):
    with pytest.raises(ValidationError, match=match):
        Measure(**settings)


def test_nothing_sampled_is_refused():
    with pytest.raises(ValueError, match=r" 1 and 0$"):
        measure(evaluation([[]], np.zeros((1, 0))))


def counted_out(votes, rewards, k):
    """Every subset, its ties shared out; a class is worth the mean reward of all its members."""
    value = {v: np.mean([r for w, r in zip(votes, rewards, strict=True) if w == v]) for v in votes}
    total = []
    for subset in combinations(votes, k):
        counts = Counter(v for v in subset if v is not None)
        winners = [v for v, c in counts.items() if c == max(counts.values())]
        total.append(np.mean([value[v] for v in winners]) if winners else 0.0)
    return np.mean(total)


@pytest.mark.parametrize("seed", range(30))
def test_over_all_subsets(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 11))
    votes = [str(v) if v else None for v in rng.integers(0, rng.integers(2, 8), n)]
    rewards = (rng.random(n) < 0.4).astype(float)
    want = [counted_out(votes, rewards, k) for k in range(1, n + 1)]
    assert maj_at_k(votes, rewards, range(1, n + 1)).tolist() == exactly(want)


def test_of_the_most_that_is_exact():
    """Half the chance of any vote, by symmetry: 3 right and 3 equal wrong ones among 994 silent.

    Beyond the limit it is refused.
    """
    ks = [1, 2, 500, 999, LARGEST]
    want = pass_at_k(6, LARGEST, ks) / 2
    assert plurality([(3, 1.0), (3, 0.0)], LARGEST, ks).tolist() == exactly(want.tolist())
    with pytest.raises(ValueError, match=r"maj@k .*1000.* 1001"):
        plurality([(3, 1.0)], LARGEST + 1, [1])


@pytest.mark.parametrize("k", [0, 4])
def test_k_beyond_n_is_refused(k):
    with pytest.raises(ValueError, match=r"every k .*1"):
        maj_at_k(["5", "5", "7"], [1, 1, 0], [k])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("12", " 12 "),
        ("1 2", "12"),
        ("$x+1$", "x + 1"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\tfrac12", r"\frac12"),
        (r"\left(1, 2\right)", "(1,2)"),
        ("12.", "12"),
    ],
)
def test_one_vote_spelt_two_ways(one, other):
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1.5", "15"), ("A", "a"), ("-1", "1"), (r"\leftarrow", "arrow"), ("1/2", "0.5")],
)
def test_different_votes(one, other):
    assert normalise(one) != normalise(other)
