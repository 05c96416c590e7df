"""The picture of one problem's pairs: which problem, which responses, which numbers."""

import csv
import json

import numpy as np
import pytest
from says import Says
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from nemo_algos.lab.report.matrix import Matrix, Panel, Side, matrix, most_right, responses

TEXTS = ["two and two", "two plus two", "it is four", "two and two"]


def side(folder, ids, correct, samples=4, label="a"):
    return Side(label, {"ids": ids, "correct": correct, "samples": samples}, folder)


def generations(folder, problem, texts, **more):
    rows = [
        {"problem": problem, "sample": i, "response": t, "tokens": 3, "finish": "stop", "key": "k"}
        for i, t in enumerate(texts)
    ]
    rows = [{**row, **more} for row in rows]
    with open(folder / "generations.jsonl", "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


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
