"""The known answers: forms that a prompt asks for, and what is wrong about each wrong one."""

import json

import pytest

from nemo_algos.engines.rewards.answers import boxed
from nemo_algos.preflight.check.data import answers


@pytest.mark.parametrize(
    ("prompts", "forms"),
    [
        (["Put it into \\boxed{}. 1", "Put it into \\boxed{}. 2"], ["\\boxed{}"]),
        (["<answer>7</answer>", "Answer: $Answer"], []),  # no form is asked for in both
        (["reason, then <think> and <answer>"], ["<answer>"]),
        (["The last line is Answer: $LETTER"], ["Answer:"]),
        (["End with #### and the number"], ["####"]),
        (["write a function\n```python\n"], ["a code block"]),
        (["What is 2 + 3?"], []),
        ([], []),
    ],
)
def test_the_form_is_what_every_prompt_asks_for(prompts, forms):
    assert answers.asked_forms(prompts) == forms


def test_every_form_has_the_answer_once():
    assert boxed(answers.write_answer("\\boxed{}", "\\frac{1}{2}")) == "\\frac{1}{2}"
    for form in answers.FORMS:
        assert answers.write_answer(form, "4711").count("4711") == 1


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ("42", "43"),
        ("19", "10"),
        ("1/2", "1/3"),
        ("-7.50", "-7.51"),
        ("B", "C"),
        ("Yes", "no"),
        ("False", "true"),
        ("Paris", "Rome"),
        ("Rome", "Oslo"),
        ("\\sqrt{x}", " rome"),
    ],
)
def test_a_wrong_answer_differs(answer, wrong):
    assert answers.wrong_answer(answer, [" rome" if "x" in answer else "Rome", "Oslo"]) == wrong


def test_a_wrong_answer_where_all_rows_have_one():
    assert answers.wrong_answer("Paris", ["paris", "Paris "]) == "not Paris"


def test_the_trials_of_a_row():
    trial = answers.trial("\\boxed{}", "42", ["42"])
    assert boxed(trial.gold) == "42" and boxed(trial.wrong) == boxed(trial.doubled) == "43"
    assert trial.empty == "" and trial.gold.startswith(trial.truncated)
    assert "42" in trial.doubled and boxed(trial.truncated) is None


def test_what_a_right_response_has_in_it():
    query = json.dumps({"database": "x.sqlite", "query": "SELECT 1"})
    assert answers.gold_text({"verifier": "sql"}, query) == "SELECT 1"
    assert answers.gold_text({"verifier": "code"}, "{}") is None
    for gold in ("42", "6 * 7 = <<6*7=42>>42\n#### 42", "We multiply: \\boxed{42}."):
        assert answers.gold_text({"num_workers": 8}, gold) == "42"
