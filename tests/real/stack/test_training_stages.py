"""What a rehearsal says of logged steps, on numbers made by hand."""

import json
import math
import os

import pytest
from rehearsal import training_stages
from rehearsal.training import samples


def batch(rewards, advantages=(0.5, -0.5), prompts=((1, 2), (3, 4))):
    """As NeMo-RL logs it: each value in a list of one."""
    tokens = [[[*prompt, 9, 9]] for prompt in prompts]
    return {
        "rewards": [[r] for r in rewards],
        "advantages": [[[a, a]] for a in advantages],
        "token_ids": tokens,
        "token_loss_mask": [[[0, 0, 1, 1]] for _ in tokens],
    }


@pytest.mark.parametrize(
    ("rewards", "outcome"), [([0.0, 1.0], "passed"), ([math.nan, 1.0], "failed"), ([], "failed")]
)
def test_rewards(rewards, outcome):
    assert training_stages.rollouts([batch(rewards)])[0] == outcome


@pytest.mark.parametrize(
    ("rewards", "advantages", "outcome", "word"),
    [
        ([0.0, 1.0, 1.0, 1.0], (0.5,), "passed", "1 of 2"),
        ([0.0, 0.0, 1.0, 1.0], (0.0,), "unchecked", "All 2"),
        ([0.0, 1.0, 1.0, 0.0], (math.inf,), "failed", "not finite"),
    ],
)
def test_flat_groups(rewards, advantages, outcome, word):
    found, message = training_stages.advantages([batch(rewards, advantages)], 2)
    assert found == outcome and word in message


@pytest.mark.parametrize(
    ("loss", "norm", "outcome"),
    [
        ({1: 0.1, 2: 0.2}, {1: 1.0, 2: 1.0}, "passed"),
        ({1: 0.1, 2: math.nan}, {1: 1.0, 2: 1.0}, "failed"),
        ({1: 0.1, 2: 0.2}, {1: 1.0, 2: math.inf}, "failed"),
        ({1: 0.0, 2: 0.0}, {1: 0.0, 2: 0.0}, "warning"),
        ({}, {}, "failed"),
    ],
)
def test_updates(loss, norm, outcome):
    found = {"train/loss": loss, "train/grad_norm": norm}
    assert training_stages.updates(found, range(1, 3), False)[0] == outcome
    if outcome == "warning":
        assert training_stages.updates(found, range(1, 3), True)[0] == "unchecked"


def test_refit():
    steps, near, far = range(1, 3), {1: 1e-6, 2: 1e-5}, {1: 1e-6, 2: 0.5}
    assert training_stages.refit({"train/mismatch/mean": near}, steps, "float32")[0] == "passed"
    assert training_stages.refit({"train/mismatch/mean": far}, steps, "float32")[0] == "failed"
    assert training_stages.refit({}, steps, "float32")[0] == "unchecked"


class Run(dict):
    controlled = False

    def __missing__(self, key):
        return None


@pytest.mark.parametrize(
    ("again", "outcome", "word"),
    [
        (((3, 3), (4, 4)), "passed", "2 prompts again"),
        (((5, 5), (6, 6)), "failed", "skipped"),
        (((1, 1), (4, 4)), "failed", "1 prompts of step 1"),
    ],
)
def test_prompts_after_a_resume(again, outcome, word):
    first, lost = batch([], (), ((1, 1), (2, 2))), batch([], (), ((3, 3), (4, 4)))
    run = Run({"grpo.async_grpo.enabled": False})
    found, message, _ = training_stages.compare_resume(run, first, lost, batch([], (), again))
    assert found == outcome and word in message


def test_dynamic_sampling_trains_on_other_prompts_but_never_again_on_those_of_step_1():
    first, lost = batch([], (), ((1, 1),)), batch([], (), ((3, 3),))
    run = Run({"grpo.use_dynamic_sampling": True})
    after = [
        training_stages.compare_resume(run, first, lost, batch([], (), ((n, n),))) for n in (5, 1)
    ]
    assert [outcome for outcome, *_ in after] == ["unchecked", "failed"]


def test_an_asynchronous_run_may_skip():
    first, lost = batch([], (), ((1, 1),)), batch([], (), ((3, 3),))
    run = Run({"grpo.async_grpo.enabled": True})
    assert (
        training_stages.compare_resume(run, first, lost, batch([], (), ((5, 5),)))[0] == "warning"
    )


@pytest.mark.parametrize(("lent", "outcome"), [(False, "failed"), (True, "unchecked")])
def test_what_cannot_be_judged_is_no_failure_of_rows_that_stand_in(tmp_path, lent, outcome):
    made = training_stages.Stack(Run(), tmp_path, {}, 2, lent)
    (found,) = training_stages.unjudged_responses(made, {"train/verifier/error": {1: 3.0, 2: 4.0}})
    assert (found.stage, found.outcome) == ("rollouts", outcome) and "7 " in found.message


class Ended:
    """An attempt whose program ended well, of which no checkpoint is left."""

    def __init__(self, *_):
        self.reaches, self.ended = (lambda path: False), (lambda: 0)
        self.lose_workers, self.tell = (lambda: None), (lambda *_: None)
        self.process, self.log, self.last_lines = type("P", (), {"returncode": 0}), "log", str
        self.reason = lambda: "ValueError: x"


@pytest.mark.parametrize(
    ("saves", "want"), [(True, ("step", "failed")), (False, ("save", "unchecked"))]
)
def test_a_run_without_checkpoints_is_not_resumed(tmp_path, monkeypatch, saves, want):
    run = Run({"checkpointing.enabled": saves, "cluster.gpus_per_node": 1})
    made = training_stages.Stack(run, tmp_path, {}, 2)
    monkeypatch.setattr(training_stages, "Attempt", Ended)
    monkeypatch.setattr(training_stages, "samples", lambda *_: {"rewards": [1]})
    monkeypatch.setattr(training_stages, "judge_steps", lambda *_: [])
    said = []
    made.rehearse(said.append)
    assert (said[-1].stage, said[-1].outcome) == want
    assert made.length.endswith("4" if saves else "2")


def test_what_fails_in_a_run_that_ended_comes_with_the_end_of_its_log(tmp_path, monkeypatch):
    made = training_stages.Stack(Run({"checkpointing.enabled": True}), tmp_path, {}, 2)
    monkeypatch.setattr(training_stages, "Attempt", Ended)
    monkeypatch.setattr(training_stages, "samples", lambda *_: {"rewards": [1]})
    unlogged = made.verdict("step", *training_stages.updates({}, range(1, 3), False))
    monkeypatch.setattr(training_stages, "judge_steps", lambda *_: [unlogged])
    said = []
    made.rehearse(said.append)
    assert said[-1].message.startswith(unlogged.message) and "log" in said[-1].message
    assert said[-1].outcome == "failed" and "lines" in said[-1].details


def test_responses_of_a_controller_are_those_of_its_newest_trace(tmp_path):
    """It logs no train_data: of a step that was made twice, the second counts."""
    for place, steps in (("exp_001", (1, 2)), ("exp_002", (2, 3))):
        lines = [
            {
                "step": n,
                "prompt": f"{place} {n}",
                "tokens": ["a", "b"],
                "reward": n,
                "advantage": [0],
            }
            for n in steps
        ]
        file = tmp_path / "logs" / place / "trace.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.utime(file, (0, int(place[-1])))
    found = {step: samples(tmp_path, step) for step in (1, 2, 4)}
    assert training_stages.prompts(found[1]) == ["exp_001 1"] and found[1]["content"] == [
        "exp_001 1ab"
    ]
    assert training_stages.prompts(found[2]) == ["exp_002 2"] and not found[4]
    assert training_stages.rollouts([found[1], found[2]])[0] == "passed"
