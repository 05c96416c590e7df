"""The verdicts on rewards, from the rewards alone."""

import math

import pytest

from nemo_algos.preflight.check.data import rewards as reward_checks
from nemo_algos.preflight.check.data import verdict
from nemo_algos.preflight.check.data.rows import Row
from nemo_algos.preflight.check.data.verdict import Stage

N = 20
RIGHT, NOT = [1.0] * N, [0.0] * N
OTHERS = (*reward_checks.KINDS, "doubled", "short")
SOUND = dict.fromkeys(("gold", "again", "long"), RIGHT) | dict.fromkeys(OTHERS, NOT)


def of_rows(*numbers, bad=1.0, good=0.0):
    """Rewards that are `bad` in these rows."""
    return [bad if n in numbers else good for n in range(1, N + 1)]


def judged(folder, wanted=("\\boxed{}",), form="\\boxed{}", seconds=0.01, **rewards):
    rows = [Row(n, "task", "?", str(n)) for n in range(1, N + 1)]
    if "gold" in rewards:
        rewards = {"again": rewards["gold"], "long": rewards["gold"]} | rewards
    given = SOUND | rewards
    scored = [
        reward_checks.Scored(row, str(n), {kind: of[n] for kind, of in given.items()}, seconds)
        for n, row in enumerate(rows)
    ]
    reward_checks.judge_scores(
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
    "paid nothing": ({"empty": RIGHT}, "failed", "env.x", "20 of 20"),
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
    found = judged(tmp_path, **arguments)
    assert [(o, k) for o, k, _ in found] == [(outcome, key)]
    assert word in found[0][2]
