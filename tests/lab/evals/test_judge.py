"""The GPT-based diversity: what is asked, what is a score, and that nothing is asked twice."""

import json
from collections import Counter

import numpy as np
import pytest
from completions import completion, server
from says import Says
from test_run import answer, config, run

from nemo_algos.lab.evals import judge
from nemo_algos.lab.evals.problem import Evaluation, Problem
from nemo_algos.lab.evals.schema import Judge


@pytest.fixture
def written(tmp_path):
    return config(tmp_path)


def judged(written, server_url, replies, seen, **keys):
    """An evaluation whose judge answers in turn; (folder, metrics)."""
    replies = iter(replies)

    def reply(body):
        seen.append(body)
        return next(replies)

    with server(reply) as (at, _):
        section = {"name": "j", "url": at, "concurrency": 1, "retries": 0, **keys}
        return run(written, server_url, metrics={**written["metrics"], "judge": section})


@pytest.mark.parametrize(
    ("text", "score"),
    [
        *((str(i), i) for i in range(4)),
        (" 2.\n", 2),
        ("Score: **3**", 3),
        ("<think>\n0 or 1 or 3?\n</think>\n1", 1),
        *((text, None) for text in ("", "two", "4", "-1", "1.5", "2/3", "0-3", "10", "12", "²")),
    ],
)
def test_what_is_a_score(text, score):
    assert judge.score(text) == score


def test_scores_are_stored_and_not_asked_again(written):
    seen = []
    with server(answer) as (url, _):
        folder, plain = run(written, url)
        assert "gpt_diversity" not in plain["scalars"]
        texts = [(200, completion(t)) for t in ("3", "1", "no idea")]
        _, first = judged(written, url, texts, seen)
        assert len(seen) == 3
        _, again = judged(written, url, [], seen, url="http://127.0.0.1:9/v1")
        assert (again["scalars"], again["excluded"]) == (first["scalars"], first["excluded"])
        assert first["scalars"]["gpt_diversity"]["value"] == 2  # of 3 and 1
        assert (first["scalars"]["gpt_diversity"]["low"], first["excluded"]["gpt_diversity"]) == (
            1,
            1,
        )
        lines = (folder / "judgements.jsonl").read_text().splitlines()
        assert [json.loads(line)["answer"] for line in lines] == ["3", "1", "no idea"]
        _, other = judged(written, url, [(200, completion("0"))] * 3, seen, name="k")
    assert len(seen) == 6 and other["scalars"]["gpt_diversity"]["value"] == 0


def test_the_right_responses_alone_are_asked_about(written):
    seen = []
    with server(answer) as (url, _):
        _, metrics = judged(written, url, [(200, completion("2"))] * 3, seen)
    asked = [body["messages"][0]["content"] for body in seen]
    assert all(text.startswith(judge.PROMPT) for text in asked)
    assert [text.count("Solution ") - judge.PROMPT.count("Solution ") for text in asked] == metrics[
        "correct"
    ]
    assert [text.count(r"\boxed{5}") for text in asked] == [0, metrics["correct"][1], 0]
    assert r"\boxed{6}" not in asked[1]


def test_a_refusal_is_no_score_and_is_asked_again(written):
    seen = []
    replies = [(200, completion("3")), (400, "too long"), (200, completion("1"))]
    with server(answer) as (url, _):
        folder, metrics = judged(written, url, replies, seen)
        assert metrics["excluded"]["gpt_diversity"] == 1
        _, metrics = judged(written, url, [(200, completion("2"))], seen)
    assert "gpt_diversity" not in metrics["excluded"] and len(seen) == 4
    assert metrics["scalars"]["gpt_diversity"]["value"] == 2
    assert len((folder / "judgements.jsonl").read_text().splitlines()) == 3


def test_a_judge_that_is_away_is_said(written):
    with server(answer) as (url, _), pytest.raises(ValueError) as error:
        judged(written, url, [], [], url="http://127.0.0.1:9/v1")
    assert str(error.value) == Says("metrics.judge: 127.0.0.1:9/v1/chat/completions")


def test_fewer_than_two_right_responses_are_not_asked_about(tmp_path):
    problems = [Problem(name, "", "") for name in "ab"]
    ones, rewards = np.ones((2, 2)), np.array([[1.0, 0.0], [0.0, 0.0]])
    texts = [["x", "y"]] * 2
    given = Evaluation("m", problems, texts, rewards, [], ones.astype(int), ones, Counter())
    found = judge.scores(given, Judge(name="j", url="http://127.0.0.1:9/v1"), tmp_path, print)
    assert np.isnan(found).all()
