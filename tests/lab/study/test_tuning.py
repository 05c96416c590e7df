"""Tuning: every arm gets the same values and seeds, and keeps its best by training reward."""

import pytest

from nemo_algos.config import ConfigError
from nemo_algos.lab.study import design, tuning

KEY = "policy.optimizer.kwargs.lr"
STUDY = design.Study.model_validate(
    {
        "settings": {"grpo.max_num_steps": 3},
        "regimes": {
            "head": {
                "claim": "-",
                "baseline": "grpo",
                "seeds": 2,
                "first_seed": 100,
                "settings": {"grpo.num_update_epochs": 2},
                "tune": {"key": KEY, "values": [1e-4, 2e-4, 4e-4], "seeds": 2},
                "arms": {"grpo": {}, "mine": {"config": "etr.yaml", "method.micro": 0.05}},
            },
            "plain": {"claim": "-", "baseline": "grpo", "arms": {"grpo": {}, "gpg": {}}},
        },
    }
)


def lr(config):
    return config.policy.optimizer.kwargs["lr"]


def test_the_sweeps_have_every_arm_value_and_seed():
    runs, cells = design.runs(tuning.sweeps(STUDY))
    found = [(r.config.method["name"], lr(r.config), r.config.grpo.seed) for r in runs]
    assert len(found) == len(cells) == 12
    assert set(found) == {
        (m, v, s) for m in ("grpo", "etr") for v in (1e-4, 2e-4, 4e-4) for s in (0, 1)
    }
    assert all(r.config.grpo.num_update_epochs == 2 for r in runs)
    assert {r.config.method.get("micro") for r in runs} == {None, 0.05}


def test_the_best_by_late_training_reward_and_a_broken_run_is_worth_nothing():
    _, cells = design.runs(tuning.sweeps(STUDY))
    rewards = {
        "grpo 0.0001": (0.5, 0.5),
        "grpo 0.0002": (0.2, 0.9),
        "grpo 0.0004": (0.9, 0.95),  # the second one broke off
        "mine 0.0001": (0.25, 0.25),
        "mine 0.0002": (0.125, 0.375),  # equal: the first value stays
        "mine 0.0004": (0.1, 0.1),
    }
    rows = {c.run: {"reward/mean": rewards[c.arm][c.seed], "pass@1": 0.0} for c in cells}
    for cell in cells:
        if cell.arm == "mine 0.0004":
            rows[cell.run]["pass@1"] = 1.0  # a test prompt never chooses
        if (cell.arm, cell.seed) == ("grpo 0.0004", 1):
            rows[cell.run] = {"failed": "no number"}
    plan = tuning.choose(STUDY, cells, rows)
    assert list(plan.regimes) == ["head_tuning", "head", "plain"]
    assert plan.regimes["plain"] == STUDY.regimes["plain"]
    runs, cells = design.runs(plan)
    of = {c.arm: c.run for c in cells if c.regime == "head"}
    config = {r.id: r.config for r in runs}
    assert lr(config[of["grpo"]]) == 2e-4
    assert lr(config[of["mine"]]) == 1e-4 and config[of["mine"]].method["micro"] == 0.05
    assert {c.seed for c in cells if c.regime == "head"} == {100, 101}


def test_nothing_to_tune():
    plain = STUDY.model_copy(update={"regimes": {"plain": STUDY.regimes["plain"]}})
    assert design.runs(tuning.sweeps(plain)) == ([], [])
    assert tuning.choose(plain, [], {}) == plain


def test_a_wrong_key_is_said():
    head = STUDY.regimes["head"]
    wrong = head.model_copy(update={"tune": design.Tuning(key="grpo.sede", values=[1, 2])})
    study = STUDY.model_copy(update={"regimes": {"head": wrong}})
    with pytest.raises(ConfigError, match="did you mean seed"):
        design.runs(tuning.sweeps(study))
