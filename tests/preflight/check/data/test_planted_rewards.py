"""Rewards with a mistake in them, tried on rows and on known right answers: each is named."""

import itertools
import json
import math
import random
import re

import pytest
from doc_commands import ROOT, blocks

from nemo_algos.engines.rewards.answers import boxed
from nemo_algos.engines.rewards.pool import Verdict
from nemo_algos.preflight.check.data import answers, rewards, scoring, verdict
from nemo_algos.preflight.check.data.rows import Row
from nemo_algos.preflight.check.data.verdict import Stage

PROMPT = "2 + 3 = ? \\boxed{}"
ROWS = [Row(n, "sums", f"What is {n} + {n + 7}?", str(2 * n + 7)) for n in range(1, 201)]


def sound(response, answer):
    return float(boxed(response) == answer)


def has_box(response):
    return boxed(response) is not None or "\\boxed{}" in response


class Judge:
    """As scoring.Judge, of a function in this process."""

    def __init__(self, reward, section=None):
        self.reward = reward
        self.section = section or {}

    def started(self):
        pass

    def rewards(self, responses, answers):
        return [float(self.reward(r, a)) for r, a in zip(responses, answers, strict=True)]

    def timed(self, response, answer):
        return self.rewards([response], [answer])[0], 0.01

    def reason(self, response, answer):
        return "error: it"


def judged(folder, reward, rows=ROWS, stops=(), prompt=PROMPT):
    stage = Stage(folder, "rewards")
    rewards.judge(stage, "x", Judge(reward), rows, [prompt], False, stops)
    return verdict.read(folder)


def stateful():
    calls = itertools.count()
    return lambda r, a: sound(r, a) if next(calls) < 100 else 0.0


def queued():
    """A response without an answer leaves a score too many."""
    scores = []

    def reward(response, answer):
        scores.extend([sound(response, answer)] + [0.0] * (not boxed(response)))
        return scores.pop(0)

    return reward


def novel():
    """Only the first of equal responses is paid."""
    seen = set()
    return lambda r, a: sound(r, a) * (r not in seen and not seen.add(r))


def alternating():
    calls = itertools.count()
    return lambda r, a: sound(r, a) * (1 + next(calls) % 2 / 8)


def warming():
    """What it pays grows with what it has seen."""
    calls = itertools.count(1)
    return lambda r, a: sound(r, a) * (1 - 1 / next(calls))


def noisy():
    rng = random.Random(0)
    return lambda r, a: sound(r, a) + rng.gauss(0, 0.3)


def evaluated(text):
    try:
        return eval(text)
    except Exception:
        return None


def number(text):
    try:
        return float(text)
    except ValueError:
        return math.nan


def box(response):
    return boxed(response) or ""


REWARDS = {  # reward, outcome, a word of the message
    "sound": (sound, "passed", "64 of 64"),
    "graded": (lambda r, a: sound(r, a) + 0.1 * has_box(r), "passed", "64 of 64"),
    "large": (lambda r, a: 1e6 * sound(r, a), "passed", "64 of 64"),
    "shorter is better": (lambda r, a: sound(r, a) * (1 - 1e-5 * len(r)), "passed", "64 of 64"),
    "a prefix, an empty box": (lambda r, a: has_box(r) and a.startswith(box(r)), "failed", "place"),
    "a prefix": (lambda r, a: bool(box(r)) and a.startswith(box(r)), "failed", "first digit"),
    "the last digit": (lambda r, a: box(r)[-1:] == a[-1:], "failed", "differ"),
    "digits alone": (
        lambda r, a: re.sub(r"\D", "", box(r)) == a,
        "failed",
        "point",
    ),
    "eval": (lambda r, a: evaluated(box(r)) == int(a), "failed", "Python"),
    "any sign": (lambda r, a: box(r).lstrip("-") == a, "failed", "sign"),
    "absolute": (lambda r, a: bool(box(r)) and abs(number(box(r))) == int(a), "failed", "sign"),
    "wait": (lambda r, a: sound(r, a) + 0.1 * ("wait" in r.lower()), "warning", "habit"),
    "verify": (lambda r, a: sound(r, a) + 0.1 * ("verify" in r), "warning", "habit"),
    "aha": (lambda r, a: sound(r, a) * (2 if "aha" in r.lower() else 1), "warning", "habit"),
    "length": (lambda r, a: sound(r, a) + 0.002 * len(r), "warning", "length"),
    "one huge": (lambda r, a: sound(r, a) * (1e6 if a == "11" else 1), "warning", "row 2"),
    "noise": (noisy, "failed", "noise"),
    "a state": (stateful, "failed", "asked again"),
    "a queue": (queued, "failed", "asked again"),
    "novelty": (novel, "failed", "asked again"),
    "turns": (alternating, "failed", "asked again"),
    "growth": (warming, "failed", "asked again"),
    "a part of the other": (lambda r, a: box(r) in a, "failed", "empty answers as much"),
    "nothing is enough": (lambda r, a: sound(r, a) or not r, "failed", "empty answers as much"),
    "no answer is half": (lambda r, a: max(sound(r, a), .5 * (not r)), "warning", "for none"),
    "none is more": (lambda r, a: 2 if not r else sound(r, a), "failed", "empty answers as much"),
}  # fmt: skip
MADE = (noisy, stateful, queued, novel, alternating, warming)


@pytest.mark.parametrize("name", REWARDS)
def test_a_planted_reward_is_named(name, tmp_path):
    reward, outcome, word = REWARDS[name]
    made = reward() if reward in MADE else reward
    rows = ROWS[:60] if name == "one huge" else ROWS
    found = judged(tmp_path, made, rows)
    assert any(v.outcome == outcome and word in v.message for v in found), found
    assert outcome != "passed" or [v.outcome for v in found] == ["passed"]
    assert reward not in MADE or len(found) == 1
    assert word != "empty answers as much" or not any("does not pay" in v.message for v in found)


def in_trl(page):
    """The function of (completions, answer) that a page shows, as one of a response."""
    (block,) = (b.body for b in blocks((ROOT / page).read_text()) if "def reward(" in b.body)
    names = {"re": re}
    exec("def reward(" + block.split("def reward(")[1].split("\n\n")[0], names)
    return lambda response, answer: names["reward"]([response], [answer])[0]


def of_a_run(page):
    """The reward that a page's config names; tests/real/nemo runs all of the page's files."""
    (block,) = (b.body for b in blocks((ROOT / page).read_text()) if "# my_reward.py" in b.body)
    names = {}
    exec(block, names)
    return names["score"]


@pytest.mark.parametrize(
    ("page", "read"),
    [("docs/scale.md", of_a_run), ("docs/adapters.md", in_trl)],
)
def test_a_reward_that_people_copy_is_sound(page, read, tmp_path):
    found = judged(tmp_path, read(page))
    assert [v.outcome for v in found] == ["passed"], found


LETTERS = [Row(n, "letters", f"Which is letter {n}?", "ABC"[n % 3]) for n in range(1, 41)]


def line(response):
    """What stands behind the last "Answer:"."""
    return response.rpartition("Answer: ")[2]


CLASSES = {  # rows, prompt, reward, a word of the warning; "" of a sound one
    "all letters": (LETTERS, PROMPT, lambda r, a: a in box(r), "a list of the answers"),
    "a letter": (LETTERS, PROMPT, sound, ""),
    "a letter or nothing": (LETTERS, PROMPT, lambda r, a: sound(r, a) or not r, "empty answers"),
    "the end": (ROWS, PROMPT, lambda r, a: sound(r[-300:], a), "ten sentences behind it"),
    "a strict line": (ROWS, "Answer: ...", lambda r, a: line(r) == a, "between dollar signs"),
    "a line": (ROWS, "Answer: ...", lambda r, a: line(r).strip("$") == a, ""),
}


@pytest.mark.parametrize("name", CLASSES)
def test_right_and_wrong_forms_of_an_answer(name, tmp_path):
    rows, prompt, reward, word = CLASSES[name]
    said = [
        v.message for v in judged(tmp_path, reward, rows, prompt=prompt) if v.outcome != "passed"
    ]
    assert len(said) == bool(word) and all(word in message for message in said)


def test_rows_are_drawn_from_the_whole_file(tmp_path):
    """Data are often sorted by source: here the last two thirds cannot be read."""
    torn = [row._replace(answer="\\frac{1}{") if row.number > 64 else row for row in ROWS]
    found = judged(tmp_path, lambda r, a: "frac" not in a and sound(r, a), torn)
    assert [v.outcome for v in found] == ["failed"] and len(found[0].details["rows"]) > 30
    drawn = rewards.drawn(ROWS)
    assert drawn == rewards.drawn(ROWS) and len(drawn) == rewards.ROWS
    assert drawn[0].number <= 4 and drawn[-1].number >= 197
    assert {row.number % 4 for row in drawn} == {0, 1, 2, 3}


def test_answers_that_are_sentences(tmp_path):
    """A policy's number would earn nothing."""
    told = [row._replace(answer=f"We add them. So the sum is {row.answer}.") for row in ROWS]
    (found,) = judged(tmp_path, sound, told)
    assert (found.outcome, found.key) == ("failed", "env.x") and "output_key" in found.message
    (tmp_path / "b").mkdir()
    with_units = [row._replace(answer=f"{row.answer} apples") for row in ROWS]
    assert [v.outcome for v in judged(tmp_path / "b", sound, with_units)] == ["passed"]


@pytest.mark.parametrize(
    ("stop", "outcome"),
    [("\n", "failed"), (".", "failed"), ("Question:", "passed"), ("<|im_end|>", "passed")],
)
def test_a_stop_string_before_the_answer(stop, outcome, tmp_path):
    found = judged(tmp_path, sound, stops=[stop])
    stopped = [v for v in found if v.key == "policy.generation.stop_strings"]
    assert [v.outcome for v in stopped] == ["failed"] * (outcome == "failed")


class Pool:
    """As VerifierPool, of one outcome."""

    verdict = Verdict(0.0, "ok")

    def __init__(self, verifier, **settings):
        self.settings = settings

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def score(self, responses, answers):
        return [self.verdict]


@pytest.mark.parametrize(
    ("status", "detail", "small"),
    [
        ("error", "ImportError: libx.so: failed to map segment from shared object", True),
        ("memory", "", True),
        ("error", "KeyError: x", False),
    ],
)
def test_too_little_memory_names_the_key_of_it(status, detail, small, monkeypatch):
    monkeypatch.setattr(Pool, "verdict", Verdict(0.0, status, detail))
    monkeypatch.setattr(scoring, "VerifierPool", Pool)
    judge = scoring.VerifierJudge({"verifier": "math", "memory_mb": 2048})
    assert ("memory_mb: 2048" in judge.reason("x", "1")) == small


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


N = 20
RIGHT, NOT = [1.0] * N, [0.0] * N
OTHERS = (*rewards.KINDS, "doubled", "short")
SOUND = dict.fromkeys(("gold", "again", "long", "habits"), RIGHT) | dict.fromkeys(OTHERS, NOT)


def of_rows(*numbers, bad=1.0, good=0.0):
    """Rewards that are `bad` in these rows."""
    return [bad if n in numbers else good for n in range(1, N + 1)]


def verdicts(folder, wanted=("\\boxed{}",), form="\\boxed{}", seconds=0.01, **changed):
    rows = [Row(n, "task", "?", str(n)) for n in range(1, N + 1)]
    if "gold" in changed:
        changed = (
            {"again": changed["gold"], "long": changed["gold"]}
            | {"habits": changed["gold"]}
            | changed
        )
    given = SOUND | changed
    for kind in rewards.RIGHT:
        given.setdefault(kind, given["gold"])
    trials = [answers.trial(answers.BOXED, str(n), ()) for n in range(len(rows))]
    scored = []
    for n, row in enumerate(rows):
        own = {kind: of[n] for kind, of in given.items()}
        scored.append(rewards.Scored(row, trials[n], own, seconds))
    rewards.judge_scores(
        Stage(folder, "rewards"), "env.x", scored, form, wanted, lambda *_: "error: it"
    )
    return [(v.outcome, v.key, v.message) for v in verdict.read(folder)]


CASES = {  # arguments, outcome, key, a word of the message
    "sound": ({}, "passed", "env.x", "20 of 20"),
    "graded": ({"wrong": [0.5] * N, "truncated": [0.2] * N}, "passed", "env.x", "20 of 20"),
    "below zero": ({"gold": NOT, **dict.fromkeys(OTHERS, [-1.0] * N)},
                   "passed", "env.x", "20 of 20"),
    "nan": ({"wrong": of_rows(3, bad=math.nan)}, "failed", "env.x", "nan"),
    "always 0": ({"gold": NOT}, "failed", "env.x", "error: it"),
    "always 1": (dict.fromkeys(SOUND, RIGHT), "failed", "env.x", "gives 1"),
    "an unread gold": ({"gold": of_rows(7, bad=0.0, good=1.0)}, "warning", "env.x", "row 7"),
    "two": ({"gold": of_rows(7, 9, bad=0.0, good=1.0)}, "failed", "env.x", "rows 7, 9"),
    "a paid wrong": ({"wrong": of_rows(5)}, "warning", "env.x", "row 5"),
    "paid wrongs": ({"wrong": of_rows(5, 6)}, "failed", "env.x", "rows 5, 6"),
    "paid halves": ({"truncated": RIGHT}, "failed", "env.x", "truncated"),
    "paid nothing": ({"empty": RIGHT}, "failed", "env.x", "empty answers as much"),
    "paid nothing at all": ({"empty": NOT, "gold": NOT, "wrong": [-1.0] * N}, "failed", "env.x",
                            "does not pay"),
    "paid silence": ({"wrong": [-1.0] * N}, "warning", "env.x", "-1"),
    "two answers": ({"doubled": RIGHT}, "warning", "env.x", "takes it back"),
    "another form": ({"form": "<answer>"}, "failed", "env.x", "<answer>"),
    "no form": ({"wanted": ()}, "warning", "data.default.prompt_file", "\\boxed{}"),
    "no form needed": ({"wanted": (), "form": "a sentence"}, "passed", "env.x", "20 of 20"),
    "a second": ({"seconds": 1.5}, "warning", "env.x", "1.5 s"),
    "half a minute": ({"seconds": 30.0}, "failed", "env.x", "30 s"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_verdict(name, tmp_path):
    arguments, outcome, key, word = CASES[name]
    found = verdicts(tmp_path, **arguments)
    assert [(o, k) for o, k, _ in found] == [(outcome, key)]
    assert word in found[0][2]
