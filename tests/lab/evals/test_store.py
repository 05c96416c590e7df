"""Store: what is there is not done again, and never mixed with what belongs to something else."""

import json

import numpy as np
import pytest

from nemo_algos.engines.rewards import Verdict
from nemo_algos.engines.rewards.answers import boxed
from nemo_algos.lab.evals.problem import Problem
from nemo_algos.lab.evals.store import Generation, Store

PROBLEMS = [
    Problem("a", "1 + 1?", "2"),
    Problem("b", "1 + 2?", "3", ("https://x.org/x.png",), {"level": "1"}),
]
MANIFEST = {
    "model": {"engine": "endpoint", "model": "m"},
    "benchmark": "sums",
    "sampling": {"samples": 2, "temperature": 1.0},
    "verifier": "no module",
}


def opened(folder, problems=PROBLEMS, **changed):
    """A store that leaves the folder to the next one."""
    store = Store(folder, {**MANIFEST, **changed}, problems)
    store.lock.close()
    return store


def answer(problem, sample, text=r"\boxed{2}", finish="stop"):
    return Generation(problem, sample, text, 7, finish)


def places(missing):
    return [(problem.id, samples) for problem, samples in missing]


def judge_all(store, reward=1.0, status="ok"):
    store.judge([(p, g, Verdict(reward, status)) for p, g in store.unverified()])


def judged(folder, reward=1.0, status="ok", **changed):
    """A store with both responses to the first problem, judged."""
    store = opened(folder, **changed)
    store.add([answer("a", 0), answer("a", 1)])
    judge_all(store, reward, status)
    return store


def test_asks_for_what_is_missing(tmp_path):
    store = opened(tmp_path)
    assert places(store.missing()) == [("a", [0, 1]), ("b", [0, 1])]
    store.add([answer("a", 1), answer("b", 0), answer("b", 1)])
    assert places(store.missing()) == [("a", [0])]
    again = opened(tmp_path)
    assert places(again.missing()) == [("a", [0])]
    more = opened(tmp_path, sampling={"samples": 3, "temperature": 1.0})
    assert places(more.missing()) == [("a", [0, 2]), ("b", [2])]


def test_evaluation_holds_complete_problems_in_order(tmp_path):
    store = opened(tmp_path)
    store.add([answer("b", 1, "none", "length"), answer("b", 0), answer("a", 0)])
    pairs = {g.sample: (p, g) for p, g in store.unverified() if p.id == "b"}
    store.judge([(*pairs[0], Verdict(1.0, "ok")), (*pairs[1], Verdict(0.0, "timeout"))])
    evaluation = opened(tmp_path).evaluation(boxed)
    assert evaluation.problems == [PROBLEMS[1]]
    assert evaluation.responses == [[r"\boxed{2}", "none"]]
    assert evaluation.answers == [["2", None]]
    np.testing.assert_array_equal(evaluation.rewards, [[1.0, 0.0]])
    np.testing.assert_array_equal(evaluation.tokens, [[7, 7]])
    np.testing.assert_array_equal(evaluation.finished, [[True, False]])
    assert evaluation.statuses == {"ok": 1, "timeout": 1}


def test_a_changed_gold_or_verifier_is_judged_anew_but_not_sampled(tmp_path):
    store = opened(tmp_path)
    store.add([answer(p, i) for p in "ab" for i in range(2)])
    judge_all(store)
    assert not opened(tmp_path).unverified()
    corrected = [Problem("a", "1 + 1?", "two"), PROBLEMS[1]]
    store = opened(tmp_path, corrected)
    assert not store.missing()
    assert [p.id for p, _ in store.unverified()] == ["a", "a"]
    judge_all(store, reward=0.0)
    np.testing.assert_array_equal(store.evaluation(None).rewards, [[0, 0], [1, 1]])
    assert len(opened(tmp_path, verifier="another").unverified()) == 4


LONG = "data:image/png;base64," + "A/" * 9_000 + "A" * 999


@pytest.mark.parametrize(
    ("before", "after", "anew"),
    [
        (("1 + 1?",), ("1 + 1 = ?",), True),
        (("1 + 1?",), ("1 + 1?", ("https://y",)), True),
        (("?", ("https://x",)), ("?", ("https://xB",)), True),
        (("?", (LONG,)), ("?", (LONG + "B",)), True),
        (("?", ("cat.png",)), ("?", ("moved.png",)), False),  # a picture is what it shows
        (("?", ("cat.png",)), ("?", ("dog.png",)), True),
    ],
)
def test_a_changed_prompt_is_sampled_anew(tmp_path, monkeypatch, before, after, anew):
    monkeypatch.chdir(tmp_path)
    for name, shown in {"cat.png": b"cat", "moved.png": b"cat", "dog.png": b"dog"}.items():
        (tmp_path / name).write_bytes(shown)

    def asked(prompt, images=()):
        return [Problem("a", prompt, "2", images), PROBLEMS[1]]

    opened(tmp_path / "e", asked(*before)).add([answer(p, i) for p in "ab" for i in range(2)])
    assert not opened(tmp_path / "e", asked(*before)).missing()
    missing = places(opened(tmp_path / "e", asked(*after)).missing())
    assert missing == ([("a", [0, 1])] if anew else [])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": {"engine": "endpoint", "model": "n"}}, "model.model: m -> n"),
        ({"sampling": {"samples": 2, "temperature": 0.6}}, "sampling.temperature: 1.0 -> 0.6"),
        ({"benchmark": "products"}, "benchmark: sums -> products"),
    ],
)
def test_refuses_the_folder_of_another(tmp_path, changed, said):
    opened(tmp_path).add([answer("a", 0)])
    with pytest.raises(ValueError, match=r"out") as error:
        opened(tmp_path, **changed)
    assert said in str(error.value)
    assert json.loads((tmp_path / "manifest.json").read_text()) == MANIFEST


def test_a_kill_in_the_middle_of_a_line_costs_that_line(tmp_path):
    store = opened(tmp_path)
    store.add([answer("a", 0), answer("a", 1), answer("b", 0)])
    path = tmp_path / "generations.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    store = opened(tmp_path)
    assert places(store.missing()) == [("b", [0, 1])]
    store.add([answer("b", 0), answer("b", 1)])
    assert not opened(tmp_path).missing()


def test_text_survives_as_it_is(tmp_path):
    hostile = "\0 \ud800 \u2028 </script> \r\n" + "x" * 10_000
    store = opened(tmp_path)
    store.add([answer("a", i, hostile) for i in range(2)])
    judge_all(store)
    assert opened(tmp_path).evaluation(None).responses == [[hostile, hostile]]


def test_nothing_complete_is_said(tmp_path):
    with pytest.raises(ValueError, match=r" 2 "):
        opened(tmp_path).evaluation(None)


@pytest.mark.parametrize(
    ("status", "again"), [("error", 2), ("timeout", 2), ("memory", 2), ("too_long", 0), ("ok", 0)]
)
def test_what_another_run_may_change_is_judged_again(tmp_path, status, again):
    store = judged(tmp_path, 0.0, status)
    evaluation = store.evaluation(None)
    assert (evaluation.statuses, evaluation.answers) == ({status: 2}, [])
    reopened = opened(tmp_path)
    assert len(reopened.unverified()) == again
    judge_all(reopened)
    rewards = opened(tmp_path).evaluation(None).rewards
    np.testing.assert_array_equal(rewards, [[1, 1] if again else [0, 0]])


def test_another_version_of_a_verifier_judges_anew(tmp_path, monkeypatch):
    judged(tmp_path)
    monkeypatch.setattr("nemo_algos.lab.evals.store.version", lambda name: "99")
    assert len(opened(tmp_path).unverified()) == 2


def test_fewer_samples_than_are_stored(tmp_path):
    judged(tmp_path, verifier="another")
    fewer = opened(tmp_path, sampling={"samples": 1, "temperature": 1.0})
    assert len(fewer.unverified()) == 1
    judge_all(fewer)
    assert fewer.evaluation(None).rewards.shape == (1, 1)


def test_what_is_not_known_of_a_response(tmp_path):
    store = opened(tmp_path)
    store.add([answer("a", 0, finish="length"), answer("a", 1, finish="")])
    store.add([answer("b", 0), answer("b", 1, "", "refused: too long")])
    judge_all(store)
    np.testing.assert_array_equal(store.evaluation(None).finished, [[0, np.nan], [1, 0]])


def test_one_process_at_a_time(tmp_path):
    first = Store(tmp_path, MANIFEST, PROBLEMS)
    with pytest.raises(ValueError, match="another process is evaluating into"):
        opened(tmp_path)
    first.lock.close()
    opened(tmp_path)


@pytest.mark.parametrize(
    ("verifier", "edited"),
    [
        ("mine:v", "mine.py"),
        ("verifiers.math:v", "verifiers/units.py"),
        ("verifiers.math:v", "verifiers/math/spelling.py"),
    ],
)
def test_an_edited_module_that_a_verifier_uses_judges_anew(tmp_path, monkeypatch, verifier, edited):
    """As answers.py and math/expressions.py are used by the package rewards/math."""
    (tmp_path / "verifiers" / "math").mkdir(parents=True)
    package = ("__init__", "math/__init__", "math/spelling", "units")
    for name in ("mine", *(f"verifiers/{name}" for name in package)):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    judged(tmp_path / "e", verifier=verifier)
    assert not opened(tmp_path / "e", verifier=verifier).unverified()
    (tmp_path / edited).write_text("CM = 1")
    assert len(opened(tmp_path / "e", verifier=verifier).unverified()) == 2


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "{}", '{"config": {}}'])
def test_a_broken_manifest_is_named(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json"):
        opened(tmp_path)


def test_log_probs_are_kept_and_belong_to_the_evaluation(tmp_path):
    sampling = {**MANIFEST["sampling"], "logprobs": True}
    store = opened(tmp_path / "with", sampling=sampling)
    store.add([answer("a", 0)._replace(logprobs=[-0.5, -1.25]), answer("a", 1)])
    again = opened(tmp_path / "with", sampling=sampling)
    assert [g.logprobs for g in again.generations.values()] == [[-0.5, -1.25], None]
    with pytest.raises(ValueError, match=r"sampling\.logprobs"):
        opened(tmp_path / "with")


def test_a_folder_from_before_log_probs_goes_on(tmp_path):
    store = opened(tmp_path)
    store.add([answer("a", 0)])
    assert "logprobs" not in (tmp_path / "generations.jsonl").read_text()
    off = {**MANIFEST["sampling"], "logprobs": False}
    assert places(opened(tmp_path, sampling=off).missing()) == [("a", [1]), ("b", [0, 1])]
