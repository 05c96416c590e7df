"""What reward functions are given, weighted sums, and failures that are told."""

import os

import pytest
from says import Says

from nemo_algos.engines.rewards import Unjudged, Verdict
from nemo_algos.engines.rewards.function import GIVEN, PAIR, RewardFunction
from nemo_algos.engines.rewards.weighted import Reward, Rewards, refuse_unjudged

COLUMNS = {
    "response": ["a b", "a b c"],
    "answer": ["2", "3"],
    "prompt": ["say 1", "say 2"],
    "row": [
        {"problem": "1", "answer": "2", "level": 1},
        {"problem": "9", "answer": "0", "level": 2},
    ],
    "tokens": [2, 3],
}


@pytest.fixture
def score():
    """A function of (function, pool) or of {name: Reward}: the verdicts on COLUMNS."""
    made = []

    def run(functions, pool=True):
        if isinstance(functions, str):
            functions = {"": Reward(f"given_rewards:{functions}", 1.0, pool)}
        made.append(Rewards(functions))
        return made[-1].score(COLUMNS)

    yield run
    for rewards in made:
        rewards.close()


@pytest.mark.parametrize("pool", [True, False])
def test_a_function_is_given_what_it_names_in_both_kinds_of_process(score, pool):
    assert score("everything", pool) == [Verdict(1 + 2 + 4 + 8, "ok"), Verdict(4 + 16, "ok")]
    assert score("open_ended", pool) == [Verdict(1.0, "ok")] * 2
    assert score("alone", pool) == [Verdict(2 / 8, "ok"), Verdict(3 / 8, "ok")]
    here = [v.reward == os.getpid() for v in score("process", pool)]
    assert here == [not pool] * 2


def test_an_async_function_is_awaited_for_all_responses_at_once(score):
    assert score("slowly", pool=False) == [Verdict(2.0, "ok")] * 2


@pytest.mark.parametrize("pool", [True, False])
def test_an_async_function_may_fail_for_some(score, pool):
    failed, judged = score("odd_later", pool)
    assert (failed.status, failed.detail) == ("error", "ValueError: 2 is even")
    assert judged == Verdict(1.0, "ok")


def test_the_status_of_a_sum_is_its_parts_and_close_ends_the_processes():
    rewards = Rewards({n: Reward(f"given_rewards:{n}") for n in ("patient", "process")})
    late, ok = rewards.score(COLUMNS)
    assert (late.status, late.detail, ok.status) == ("timeout", "patient: slow", "ok")
    pid = int(ok.parts["process"].reward)
    os.kill(pid, 0)
    rewards.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda response, answer: 0, ("response", "answer")),
        (lambda answer, response: 0, ("answer", "response")),
        (lambda r, a: 0, None),
        (lambda response, gold: 0, None),
        (lambda *both: 0, None),
        (lambda tokens: 0, ("tokens",)),
        (lambda row, *, prompt=None, scale=2: 0, ("row", "prompt")),
        (lambda response, **rest: 0, GIVEN),
        (lambda a, b, scale=2: 0, None),
        (max, None),
    ],
)
def test_names_decide(function, names):
    assert RewardFunction(function).names == names


def test_by_name_whatever_the_order_and_by_place_where_the_names_are_others():
    given = {"response": "r", "answer": "a"}
    assert RewardFunction(lambda answer, response: response + answer)(given) == "ra"
    assert RewardFunction(lambda x, y: x + y)(given) == "ra"
    assert RewardFunction(lambda response, prompt="none": prompt)(given) == "none"


@pytest.mark.parametrize(
    ("function", "given", "needs"),
    [
        (lambda completions, answer, **rest: 0, GIVEN, "needs completions"),
        (lambda prompts, completions: 0, GIVEN, "prompts completions"),
        (lambda texts, gold, **rest: 0, GIVEN, "texts gold"),
        (lambda response, answer, solution: 0, GIVEN, "solution"),
        (lambda r: 0, GIVEN, "r"),
        (lambda: 0, GIVEN, "nothing"),
        (lambda response, answer, prompt: 0, PAIR, "needs prompt"),
        (lambda response, prompt: 0, PAIR, "needs prompt"),
        (lambda response, answer, row=None: 0, PAIR, "needs row"),
        (lambda text, tokens: 0, GIVEN, "text"),
    ],
)
def test_what_asks_for_more_is_refused(function, given, needs):
    with pytest.raises(ValueError) as raised:
        RewardFunction(function, given)
    assert str(raised.value) == Says(" ".join([needs, *given]))


def test_the_weighted_sum_and_its_parts(score):
    short, odd = (
        Reward(f"given_rewards:{name}", w) for name, w in (("short", 3.0), ("odd_only", -2))
    )
    first, second = score({"short": short, "odd": odd._replace(pool=False)})
    assert first == Verdict(3 / 3, "error") and second == Verdict(3 / 4 - 2, "ok")
    assert first.detail == "odd: ValueError: 2 is even" and second.detail == ""
    assert [v.parts["short"] for v in (first, second)] == [
        Verdict(1 / 3, "ok"),
        Verdict(0.25, "ok"),
    ]
    assert [v.parts["odd"] for v in (first, second)] == [Verdict(0.0, "error"), Verdict(1.0, "ok")]


@pytest.mark.parametrize(
    ("name", "reason", "pool"),
    [
        ("boom", "KeyError 'gold'", True),
        ("boom", "KeyError 'gold'", False),
        ("endless", "ValueError nan", True),
        ("text", "TypeError '1.0' str", False),
        ("nothing", "TypeError None NoneType", False),
        ("boundless", "ValueError inf", False),
    ],
)
def test_a_function_that_judges_nothing_stops_the_run(score, name, reason, pool):
    wrong = Reward(f"given_rewards:{name}", 1.0, pool)
    with pytest.raises(Unjudged) as raised:
        score({"good": Reward("given_rewards:short"), "bad": wrong})
    assert str(raised.value) == Says(f"bad 2 {reason}")
    with pytest.raises(Unjudged) as raised:
        score(name, pool)
    assert str(raised.value) == Says(f"2 {reason}") and "bad" not in str(raised.value)


def test_some_verdicts_are_enough_and_none_are_no_failure():
    refuse_unjudged([Verdict(0.0, "timeout"), Verdict(0.0, "ok")])
    refuse_unjudged([])
    with pytest.raises(Unjudged, match=r"timeout, waits$"):
        refuse_unjudged([Verdict(0.0, "timeout", "waits")])
