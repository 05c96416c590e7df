"""A study's design: which runs it needs, how it tunes, and what is said of a wrong one."""

from pathlib import Path

import design
import pytest
import tuning
from says import Says

from nemo_algos.findings import ConfigError, validate

CONFIGS = Path(design.__file__).parent / "configs"
KEY = "policy.optimizer.kwargs.lr"
EIGHT = {
    "claim": "ETR, figure 7",
    "baseline": "grpo",
    "seeds": 3,
    "settings": {"grpo.num_update_epochs": 2},
    "arms": {"grpo": {}, "etr": {}},
}
PARTS = {
    "claim": "ETR, figure 6",
    "baseline": "whole",
    "seeds": 2,
    "settings": {"grpo.num_update_epochs": 2, "grpo.max_num_steps": 3},
    "arms": {
        "whole": {"config": "etr.yaml"},
        "no_micro": {"config": "etr.yaml", "method.micro": 0.0},
    },
}


def study(**regimes):
    regimes = {"eight": EIGHT, "parts": PARTS, **regimes}
    return design.Study.model_validate({"settings": {"grpo.max_num_steps": 3}, "regimes": regimes})


def test_equal_configs_are_one_run_whatever_their_names():
    arms = {"GRPO": {}, "Clip-High": {}, "other": {"config": "clip_high.yaml"}}
    named = {**EIGHT, "baseline": "GRPO", "arms": arms}
    runs, cells = design.runs(study(named=named))
    # eight: 2 arms x 3 seeds; parts: 2 x 2, of which `whole` is eight's etr; Clip-High x 3
    assert (len(cells), len(runs)) == (6 + 4 + 9, 8 + 3)
    of = {(c.regime, c.arm, c.seed): c.run for c in cells}
    assert of["parts", "whole", 1] == of["eight", "etr", 1] != of["eight", "etr", 0]
    assert of["parts", "no_micro", 0] != of["parts", "whole", 0]
    assert of["named", "Clip-High", 0] == of["named", "other", 0] != of["named", "GRPO", 0]
    assert [run.config.grpo.seed for run in runs] == sorted(run.config.grpo.seed for run in runs)


def test_settings_reach_the_runs_the_arms_own_last():
    own = {"grpo": {"grpo.max_num_steps": 7}, "etr": {}}
    runs, cells = design.runs(study(eight={**EIGHT, "arms": own, "first_seed": 7}))
    config = {run.id: run.config for run in runs}
    of = {(c.regime, c.arm, c.seed): config[c.run] for c in cells}
    assert of["eight", "grpo", 9].grpo.max_num_steps == 7
    assert of["eight", "etr", 9].grpo.max_num_steps == 3
    assert of["eight", "grpo", 9].grpo.num_update_epochs == 2
    assert [of["eight", "etr", s].grpo.seed for s in (7, 8, 9)] == [7, 8, 9]
    assert of["parts", "no_micro", 0].method == {"name": "etr", "micro": 0.0}


def test_where_results_go_makes_no_other_run_a_correction_does():
    arms = {
        "logged": {"config": "grpo.yaml", "logger.log_dir": "x", "grpo.val_period": 3},
        "corrected": {"config": "grpo.yaml", "rollout_correction.preset": "decoupled_geo_rs"},
        "grpo": {},
    }
    of = {c.arm: c.run for c in design.runs(study(eight={**EIGHT, "arms": arms}))[1]}
    assert of["logged"] == of["grpo"] != of["corrected"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"baseline": "gspo"}, "regimes.eight: baseline=gspo"),
        ({"tune": {"grid": {"k": [1, 2]}}}, "regimes.eight: first_seed=0 3"),
        ({"settings": {"grpo.seed": 3}}, "regimes.eight.arms.etr: grpo.seed"),
        (
            {"arms": {"grpo": {}, "etr": {"method.mirco": 0}}},
            "regimes.eight.arms.etr: method.mirco",
        ),
    ],
)
def test_mistakes_are_said_before_anything_runs(change, said):
    with pytest.raises((ConfigError, ValueError)) as error:
        design.runs(validate(design.Study, {"regimes": {"eight": EIGHT | change}}))
    assert Says(said) in str(error.value).splitlines()


LARGER = [("mismatch", 1310, 0), ("board", 910, 288)]


@pytest.mark.parametrize(
    ("name", "every", "tuning_runs"),
    [
        ("quick", 18, 8),
        ("full", 640, 96),
        *(pytest.param(*of, marks=pytest.mark.long) for of in LARGER),
    ],
)
def test_the_studies_are_valid(name, every, tuning_runs):
    plan = design.load(CONFIGS / f"{name}.yaml", [])
    assert len(design.runs(plan)[0]) == every
    assert len(design.runs(tuning.sweeps(plan))[0]) == tuning_runs


def lr(config):
    return config.policy.optimizer.kwargs["lr"]


TUNED = {
    "claim": "-",
    "baseline": "grpo",
    "seeds": 2,
    "first_seed": 100,
    "tune": {"grid": {KEY: [1e-4, 2e-4, 4e-4]}, "rounds": [{"seeds": 2}]},
    "arms": {"grpo": {}, "mine": {"config": "etr.yaml", "method.micro": 0.05}},
}


def test_the_best_by_late_training_reward_and_a_broken_run_is_worth_nothing():
    plan = design.Study.model_validate({"regimes": {"head": TUNED}})
    runs, cells = design.runs(tuning.sweeps(plan))
    assert len(runs) == 2 * 3 * 2 and {r.config.grpo.seed for r in runs} == {0, 1}
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
    tuned = tuning.tune(plan, lambda part: rows)
    runs, cells = design.runs(tuned)
    of = {c.arm: c.run for c in cells if c.regime == "head"}
    config = {r.id: r.config for r in runs}
    assert list(tuned.regimes) == ["head_tuning", "head"]
    assert lr(config[of["grpo"]]) == 2e-4
    assert lr(config[of["mine"]]) == 1e-4 and config[of["mine"]].method["micro"] == 0.05
    assert {c.seed for c in cells if c.regime == "head"} == {100, 101}


def test_successive_halving_with_knobs_on_models_of_their_own():
    """Of 6 candidates of one arm and 3 of the other 2 go on, to longer runs; then 1."""
    rounds = [{"seeds": 1, "steps": 11, "keep": 2}, {"seeds": 2, "steps": 12}]
    tune = {**TUNED["tune"], "knobs": {"mine": {"method.macro": [0.1, 0.2]}}, "rounds": rounds}
    head = {**TUNED, "tune": tune, "bases": 2, "seeds": 4}
    other = {**TUNED, "tune": None, "tuned_as": "head", "first_seed": 7}
    plan = design.Study.model_validate({"regimes": {"head": head, "other": other}})
    reward = {1e-4: 0.3, 2e-4: 0.2, 4e-4: 0.1}, {1e-4: 0.1, 2e-4: 0.6, 4e-4: 0.9}
    counts = []

    def go(part):
        found = {}
        for run in design.runs(part)[0]:
            first = run.config.grpo.max_num_steps == 11
            value = reward[not first][lr(run.config)] + 0.01 * run.config.method.get("macro", 0)
            found[run.id] = {"reward/mean": value}
        counts.append(len(found))
        return found

    tuned = tuning.tune(plan, go)
    assert counts == [3 + 6, (2 + 2) * 2]
    runs, cells = design.runs(tuned)
    config = {r.id: r.config for r in runs}
    for name in ("head", "other"):
        of = {c.arm: config[c.run] for c in cells if c.regime == name}
        assert (lr(of["grpo"]), lr(of["mine"]), of["mine"].method["macro"]) == (2e-4, 1e-4, 0.2)
    bases = [(c.seed, c.base) for c in cells if (c.regime, c.arm) == ("head", "grpo")]
    assert bases == [(100, 100), (101, 101), (102, 100), (103, 101)]
    assert all(config[c.run].policy.taught.seed == c.base for c in cells)
    assert {c.base for c in cells if c.regime.startswith("head_tuning")} == {0, 1}
