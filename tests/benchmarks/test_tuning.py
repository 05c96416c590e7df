"""Tuning: every arm gets the same values and seeds, and keeps its best by training reward."""

import design
import pytest
import tuning

from nemo_algos.config import ConfigError

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
                "tune": {"grid": {KEY: [1e-4, 2e-4, 4e-4]}, "rounds": [{"seeds": 2}]},
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
        "grpo lr=0.0001": (0.5, 0.5),
        "grpo lr=0.0002": (0.2, 0.9),
        "grpo lr=0.0004": (0.9, 0.95),  # the second one broke off
        "mine lr=0.0001": (0.25, 0.25),
        "mine lr=0.0002": (0.125, 0.375),  # equal: the first value stays
        "mine lr=0.0004": (0.1, 0.1),
    }
    rows = {c.run: {"reward/mean": rewards[c.arm][c.seed], "pass@1": 0.0} for c in cells}
    for cell in cells:
        if cell.arm == "mine lr=0.0004":
            rows[cell.run]["pass@1"] = 1.0  # a test prompt never chooses
        if (cell.arm, cell.seed) == ("grpo lr=0.0004", 1):
            rows[cell.run] = {"failed": "no number"}
    plan = tuning.tune(STUDY, lambda part: rows)
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
    assert tuning.tune(plain, lambda part: {}) == plain


def test_a_wrong_key_is_said():
    head = STUDY.regimes["head"]
    wrong = head.model_copy(update={"tune": design.Tuning(grid={"grpo.sede": [1, 2]})})
    study = STUDY.model_copy(update={"regimes": {"head": wrong}})
    with pytest.raises(ConfigError, match="did you mean seed"):
        design.runs(tuning.sweeps(study))


def test_successive_halving_with_knobs():
    """Of 6 candidates of one arm and 3 of the other 2 go on, to longer runs; then 1."""
    rounds = [{"seeds": 1, "steps": 11, "keep": 2}, {"seeds": 2, "steps": 12}]
    knobs = {"mine": {"method.macro": [0.1, 0.2]}}
    tune = {"grid": {KEY: [1e-4, 2e-4, 4e-4]}, "knobs": knobs, "rounds": rounds}
    head = STUDY.regimes["head"].model_copy(
        update={"tune": design.Tuning.model_validate(tune), "bases": 2, "seeds": 4}
    )
    other = STUDY.regimes["head"].model_copy(
        update={"tune": None, "tuned_as": "head", "first_seed": 7, "settings": {}}
    )
    study = STUDY.model_copy(update={"regimes": {"head": head, "other": other}})
    reward = {1e-4: 0.3, 2e-4: 0.2, 4e-4: 0.1}, {1e-4: 0.1, 2e-4: 0.6, 4e-4: 0.9}
    seen = []

    def go(part):
        found = {}
        for run in design.runs(part)[0]:
            grpo, method = run.config.grpo, run.config.method
            first = grpo.max_num_steps == 11
            seen.append((first, method["name"], lr(run.config), method.get("macro"), grpo.seed))
            value = reward[not first][lr(run.config)] + 0.01 * method.get("macro", 0)
            found[run.id] = {"reward/mean": value}
        return found

    plan = tuning.tune(study, go)
    assert list(plan.regimes) == ["head_tuning", "head_tuning_2", "head", "other"]
    sweep = plan.regimes["head_tuning"]
    assert sweep.baseline == "grpo lr=0.0001" and "mine lr=0.0002 macro=0.2" in sweep.arms
    assert f"`{KEY}` and its own knobs" in sweep.claim
    assert len([s for s in seen if s[0]]) == 3 + 6
    later = {s[1:4] for s in seen if not s[0]}
    assert later == {("grpo", 1e-4, None), ("grpo", 2e-4, None), ("etr", 1e-4, 0.1)} | {
        ("etr", 1e-4, 0.2)
    }
    assert len([s for s in seen if not s[0]]) == 4 * 2
    runs, cells = design.runs(plan)
    config = {r.id: r.config for r in runs}
    for name in ("head", "other"):
        of = {c.arm: config[c.run] for c in cells if c.regime == name}
        assert (lr(of["grpo"]), lr(of["mine"]), of["mine"].method["macro"]) == (2e-4, 1e-4, 0.2)
    bases = [(c.seed, c.base) for c in cells if (c.regime, c.arm) == ("head", "grpo")]
    assert bases == [(100, 100), (101, 101), (102, 100), (103, 101)]
    assert all(config[c.run].policy.taught.seed == c.base for c in cells)
    tuned_on = {c.base for c in cells if c.regime.startswith("head_tuning")}
    assert tuned_on == {0, 1} and {c.base for c in cells if c.regime == "other"} == {0}
