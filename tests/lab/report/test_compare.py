"""compare: pairs by id, intervals, buckets; the picture of one problem's pairs of responses."""

import csv
import json
from math import comb

import numpy as np
import pytest
from says import Says
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from nemo_algos.algorithms.core.pass_at_k import pass_at_k
from nemo_algos.jsonl import append_lines
from nemo_algos.lab.evals.metrics import powers_of_two
from nemo_algos.lab.evals.schema import Measure
from nemo_algos.lab.report.compare import compare
from nemo_algos.lab.report.matrix import Matrix, Panel, Side, matrix, most_right, responses


def result(correct, n=4, ids=None, **changes):
    """What compare reads of measure's."""
    return {
        "benchmark": "made up",
        "samples": n,
        "ids": [f"p{i}" for i in range(len(correct))] if ids is None else ids,
        "correct": correct,
        "curves": {"pass@k": {"k": powers_of_two(n)}},
        "per_problem": {"mean": [c / n for c in correct], "clusters": [min(c, 2) for c in correct]},
        "settings": Measure().model_dump(),
    } | changes


def exactly(want):
    return pytest.approx(want, abs=1e-12, rel=0)


def test_by_hand():
    """0, 1, 4, 2 right of 4 against 1, 0, 4, 4."""
    out = compare(result([0, 1, 4, 2]), result([1, 0, 4, 4]))
    assert out["mean"]["value"] == exactly((1 - 1 + 0 + 2) / 16)
    assert out["pass@k"]["k"] == [1, 2, 4]
    assert out["pass@k"]["value"] == exactly([2 / 16, (1 / 2 - 1 / 2 + 0 + 1 / 6) / 4, 0])
    assert out["solved"] == {
        "both": 2,
        "only_base": 1,
        "only_tuned": 1,
        "neither": 0,
        "p_value": 1.0,
    }
    assert out["unpaired"] == {"base": 0, "tuned": 0}
    json.dumps(out, allow_nan=False)


def test_problems_are_paired_by_id():
    base = result([0, 1, 4], ids=["a", "b", "c"])
    tuned = result([4, 3, 0, 2], ids=["c", "x", "a", "b"])
    out = compare(base, tuned)
    assert out["problems"] == 3 and out["unpaired"] == {"base": 0, "tuned": 1}
    assert out["mean"]["value"] == exactly(1 / 12)
    assert compare(tuned, base)["mean"]["value"] == exactly(-1 / 12)
    assert compare(tuned, base)["unpaired"] == {"base": 1, "tuned": 0}


def test_clusters_are_compared_at_equal_settings():
    """2, 0, 1 clusters against 2, 2, 1, paired by id; the other curve's thresholds may differ."""
    base = result([2, 0, 1], ids=["a", "b", "c"])
    tuned = result([1, 2, 2], ids=["c", "b", "a"])
    out = compare(base, tuned)["ucc@n"]
    assert out["value"] == exactly(2 / 3) and (out["low"], out["high"]) == (0, 2)
    for changed, alike in (
        ({"thresholds": [0.7]}, True),
        ({"ucc_threshold": 0.7}, False),
        ({"ucc_similarity": "jaccard"}, False),
        ({"linkage": "complete"}, False),
    ):
        other = tuned | {"settings": Measure.model_validate(changed).model_dump()}
        assert (compare(base, other)["ucc@n"] is not None) == alike


def test_the_interval_is_of_the_difference():
    """A gain of 1/4 on every problem is certain, however unlike the problems are."""
    base = np.random.default_rng(0).integers(0, 4, 50)
    out = compare(result(base.tolist()), result((base + 1).tolist()))
    assert out["mean"] == {"value": exactly(0.25), "low": exactly(0.25), "high": exactly(0.25)}
    gain = pass_at_k(base + 1, 4, [2])[:, 0] - pass_at_k(base, 4, [2])[:, 0]
    low, high = (out["pass@k"][end][1] for end in ("low", "high"))
    error = 1.96 * gain.std() / 50**0.5
    assert (low, high) == pytest.approx((gain.mean() - error, gain.mean() + error), abs=0.01)


def test_p_value_of_those_that_changed():
    """8 gained and 1 lost: 2 (C(9,0) + C(9,1)) / 2^9."""
    out = compare(result([0] * 8 + [1] * 5), result([1] * 8 + [0] + [2] * 4))
    assert out["solved"]["only_tuned"] == 8 and out["solved"]["only_base"] == 1
    assert out["solved"]["p_value"] == exactly(2 * (comb(9, 0) + comb(9, 1)) / 2**9)


def test_buckets_of_256():
    """Up to its upper edge a count belongs to a bucket; 0 to the first."""
    base = [0, 0, 0, 8, 9, 32, 33, 128, 129, 256]
    tuned = [0, 5, 1, 0, 9, 32, 33, 128, 129, 256]
    buckets = compare(result(base, 256), result(tuned, 256))["buckets"]
    assert [(b["above"], b["up_to"]) for b in buckets] == [(0, 8), (8, 32), (32, 128), (128, 256)]
    assert [b["problems"] for b in buckets] == [4, 2, 2, 2]
    assert buckets[0] | {"above": 0} == {
        "above": 0,
        "up_to": 8,
        "problems": 4,
        "unsolved_by_base": 3,
        "solved_by_tuned": 2,
        "flipped": 2,
        "flip_rate": 2 / 4,
    }
    assert [b["flip_rate"] for b in buckets[1:]] == [0, 0, 0]


def test_buckets_are_scaled_to_n():
    buckets = compare(result([0, 1, 2, 3, 4], 4), result([0] * 5, 4))["buckets"]
    assert [(b["above"], b["up_to"]) for b in buckets] == [(0, 0.125), (0.5, 2), (2, 4)]
    assert [b["problems"] for b in buckets] == [1, 2, 2]
    one = compare(result([1, 1], 1), result([0, 1], 1))["buckets"]
    assert [(b["above"], b["up_to"]) for b in one] == [(0, 1 / 32), (0.5, 1)]
    assert [b["problems"] for b in one] == [0, 2] and one[0]["flip_rate"] is None
    assert (
        sum(b["problems"] for b in compare(result([64, 16], 64), result([0, 0], 64))["buckets"])
        == 2
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"benchmark": "other"}, "benchmark=made up .*other"),
        ({"samples": 8}, "samples=4 .*8"),
        ({"ids": ["x", "y"]}, "common"),
    ],
)
def test_runs_that_cannot_be_compared(change, match):
    with pytest.raises(ValueError, match=match):
        compare(result([1, 2]), result([1, 2], **change))


TEXTS = ["two and two", "two plus two", "it is four", "two and two"]


def side(folder, ids, correct, samples=4, label="a"):
    return Side(label, {"ids": ids, "correct": correct, "samples": samples}, folder)


def generations(folder, problem, texts):
    about = {"problem": problem, "tokens": 3, "finish": "stop", "key": "k"}
    rows = [about | {"sample": i, "response": text} for i, text in enumerate(texts)]
    append_lines(folder / "generations.jsonl", rows)


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        ([8, 3, 5, 4], [0, 3, 4, 4], "r"),  # the fewest of each: 0, 3, 4, 4
        ([8, 3, 5, 4], [1, 3, 4, 5], "r"),
        ([8, 8, 8, 8], [2, 7, 7, 0], "q"),
        ([0, 0, 0, 0], [0, 0, 0, 0], "p"),
    ],
)
def test_the_problem_is_one_that_every_run_solves_often(tmp_path, first, second, chosen):
    ids = list("pqrs")
    backwards = side(tmp_path, ids[::-1], second[::-1])
    assert most_right([side(tmp_path, ids, first), backwards]) == chosen


def test_a_problem_is_of_all_runs(tmp_path):
    sides = [side(tmp_path, ["p", "q"], [4, 1]), side(tmp_path, ["q", "r"], [1, 4])]
    assert most_right(sides) == "q"
    assert matrix("m", "m", "tfidf", [sides[0], side(tmp_path, ["r"], [1])]) is None


def test_the_similarities_are_scikit_learns_in_the_order_of_sampling(tmp_path):
    generations(tmp_path, "q", ["not this problem"] * 4)
    generations(tmp_path, "p", ["an earlier response"] * 5)  # the fifth is of more samples
    generations(tmp_path, "p", TEXTS)
    made = matrix("m", "m", "tfidf", [side(tmp_path, ["p", "q"], [3, 1])])
    assert made is not None
    vectors = TfidfVectorizer(token_pattern=r"\w+").fit_transform(TEXTS)
    np.testing.assert_allclose(made.lines[0].values, cosine_similarity(vectors), atol=1e-12)
    assert made.lines[0].values[0, 3] == 1
    assert "problem p (3 of 4 correct)" in made.caption


def test_the_mean_is_over_pairs_and_the_csv_has_all(tmp_path):
    values = np.array([[1, 0.5, 0.25], [0.5, 1, 0], [0.25, 0, 1]])
    made = Matrix("m", "t", [Panel("a", values), Panel("b", np.ones((2, 2)))])
    assert made.lines[0].mean == 0.25
    text = made.save(tmp_path)
    assert "mean of pairs 0.25" in text and "mean of pairs 1.00" in text
    assert (tmp_path / "m.png").stat().st_size > 1000
    rows = list(csv.reader((tmp_path / "m.csv").read_text().splitlines()))
    assert rows[0] == ["series", "response", "0", "1", "2"]
    assert rows[2] == ["a", "1", "0.5", "1", "0"] and rows[5] == ["b", "1", "1", "1"]


def test_responses_that_are_not_there_are_said(tmp_path):
    with pytest.raises(ValueError) as error:
        responses(side(tmp_path, ["p"], [1]), "p")
    assert str(error.value) == Says(f"{tmp_path}/generations.jsonl 4")
    generations(tmp_path, "p", TEXTS[:3])
    with pytest.raises(ValueError) as error:
        responses(side(tmp_path, ["p"], [1]), "p")
    assert str(error.value) == Says("1 p eval")
