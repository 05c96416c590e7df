"""A study's design: which runs it needs, and what is said of a wrong one."""

import json

import design
import pytest
import yaml
from says import Says
from tuning import sweeps

from nemo_algos.config import ConfigError

WRITTEN = {
    "settings": {"grpo.max_num_steps": 3},
    "regimes": {
        "eight": {
            "claim": "ETR, figure 7",
            "baseline": "grpo",
            "seeds": 3,
            "settings": {"grpo.num_update_epochs": 2},
            "arms": {"grpo": {}, "etr": {}},
        },
        "parts": {
            "claim": "ETR, figure 6",
            "baseline": "whole",
            "seeds": 2,
            "settings": {"grpo.num_update_epochs": 2, "grpo.max_num_steps": 3},
            "arms": {
                "whole": {"config": "etr.yaml"},
                "no_micro": {"config": "etr.yaml", "method.micro": 0.0},
            },
        },
    },
}


def study(tmp_path, *overrides, **regimes):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**WRITTEN, "regimes": {**WRITTEN["regimes"], **regimes}}))
    return design.load(str(path), list(overrides))


def test_equal_configs_are_one_run(tmp_path):
    runs, cells = design.runs(study(tmp_path))
    # eight: 2 arms x 3 seeds; parts: 2 x 2, of which `whole` is eight's etr
    assert (len(cells), len(runs)) == (10, 8)
    of = {(c.regime, c.arm, c.seed): c.run for c in cells}
    assert of["parts", "whole", 1] == of["eight", "etr", 1] != of["eight", "etr", 0]
    assert of["parts", "no_micro", 0] != of["parts", "whole", 0]


def test_settings_reach_the_runs_the_arms_own_last(tmp_path):
    own = {"grpo": {"grpo.max_num_steps": 7}, "etr": {}}
    eight = {**WRITTEN["regimes"]["eight"], "arms": own}
    runs, cells = design.runs(study(tmp_path, eight=eight))
    config = {run.id: run.config for run in runs}
    of = {(c.regime, c.arm, c.seed): config[c.run] for c in cells}
    assert of["eight", "grpo", 2].grpo.max_num_steps == 7
    assert of["eight", "etr", 2].grpo.max_num_steps == 3
    assert of["eight", "grpo", 2].grpo.num_update_epochs == 2
    assert [of["eight", "etr", s].grpo.seed for s in range(3)] == [0, 1, 2]
    assert of["parts", "no_micro", 0].method == {"name": "etr", "micro": 0.0}


def test_an_arms_name_is_read_by_people_and_names_its_config(tmp_path):
    """Clip-High is clip_high.yaml, and the same run as under any other name."""
    arms = {"Clip-High": {}, "other": {"config": "clip_high.yaml"}, "GRPO": {}}
    named = {**WRITTEN["regimes"]["eight"], "baseline": "GRPO", "arms": arms}
    runs, cells = design.runs(study(tmp_path, eight=named))
    of = {(c.arm, c.seed): c.run for c in cells if c.regime == "eight"}
    assert of["Clip-High", 0] == of["other", 0] != of["GRPO", 0]
    high = {run.id: run.config for run in runs}[of["Clip-High", 0]]
    assert high.method["clip_high"] == 0.28
    assert design.in_files("QUATRO, delta 0.1") == "quatro_delta_0.1"


@pytest.mark.parametrize("name", ["full", "quick", "methods", "mismatch"])
def test_the_shipped_studies_names_are_not_identifiers(name):
    for regime in design.load(f"study/{name}.yaml", []).regimes.values():
        assert [arm for arm in regime.arms if "_" in arm] == []
        assert len({design.in_files(arm) for arm in regime.arms}) == len(regime.arms)
        assert regime.title or name == "quick"


def test_seed_by_seed_so_that_a_stopped_study_compares(tmp_path):
    runs, _ = design.runs(study(tmp_path))
    assert [run.config.grpo.seed for run in runs] == sorted(run.config.grpo.seed for run in runs)


def test_a_rollout_correction_that_does_nothing_makes_no_other_run(tmp_path):
    presets = ("disabled", "decoupled_geo_rs", "bypass_ppo_clip")
    arms = {p: {"config": "grpo.yaml", "rollout_correction.preset": p} for p in presets}
    regime = {"claim": "c", "baseline": "GRPO", "arms": {"GRPO": {}, **arms}, "seeds": 2}
    of = {cell.arm: cell.run for cell in design.runs(study(tmp_path, own=regime))[1]}
    assert of["GRPO"] == of["disabled"]
    assert len({of[arm] for arm in presets}) == 3


def test_what_is_off_is_as_before_there_was_such_a_key(tmp_path):
    """So a stored study keeps its ids; the keys that plant a mismatch are others'."""
    names = {"off": {"policy.router_replay.enabled": False}, "grpo": {}}
    names["flips"] = {"policy.generation.planted.fp8": True}
    names |= {"tiny": {"policy.shape": {}}, "three": {"policy.shape": {"experts": 3}}}
    arms = {name: {"config": "grpo.yaml", **own} for name, own in names.items()}
    eight = {**WRITTEN["regimes"]["eight"], "arms": arms}
    _, cells = design.runs(study(tmp_path, eight=eight))
    of = {c.arm: c.run for c in cells if c.regime == "eight" and c.seed == 0}
    assert of["off"] == of["grpo"] == "ae356d73cce9"
    assert len(set(of.values())) == 4 and of["tiny"] == "5d5d87551bfd"


def test_where_results_go_does_not_make_another_run(tmp_path):
    ids = [r.id for r in design.runs(study(tmp_path))[0]]
    elsewhere = study(tmp_path, "settings.logger\\.log_dir=x", "out=y")
    assert [r.id for r in design.runs(elsewhere)[0]] == ids


def test_a_younger_key_makes_no_other_run_by_its_default(tmp_path, monkeypatch):
    written, dumps = [], json.dumps
    seen = lambda value, **options: written.append(value) or dumps(value, **options)  # noqa: E731
    monkeypatch.setattr(design.json, "dumps", seen)
    design.runs(study(tmp_path))
    decides = [config for config in written if isinstance(config, dict) and "policy" in config]
    assert decides and {*decides[0]["mismatch"]} == {"threshold", "stop_above"}


@pytest.mark.parametrize(
    ("regimes", "said"),
    [
        (
            {"eight": {**WRITTEN["regimes"]["eight"], "baseline": "gspo"}},
            "regimes.eight: baseline=gspo",
        ),
        (
            {"eight": {**WRITTEN["regimes"]["eight"], "tune": {"grid": {"k": [1, 2]}}}},
            "regimes.eight: first_seed=0 3",
        ),
        (
            {
                "eight_tuning": WRITTEN["regimes"]["eight"],
                "eight": {
                    **WRITTEN["regimes"]["eight"],
                    "first_seed": 3,
                    "tune": {"grid": {"k": [1, 2]}},
                },
            },
            "eight_tuning",
        ),
        (
            {"eight": {**WRITTEN["regimes"]["eight"], "settings": {"grpo.seed": 3}}},
            "regimes.eight.arms.etr: grpo.seed",
        ),
        (
            {
                "eight": {
                    **WRITTEN["regimes"]["eight"],
                    "settings": {"grpo.val_samples_per_prompt": 0},
                }
            },
            "regimes.eight.arms.etr: grpo.val_samples_per_prompt 0",
        ),
        (
            {"eight": {**WRITTEN["regimes"]["eight"], "seed": 3}},
            "regimes.eight.seed: seeds",
        ),
        (
            {
                "eight": {
                    **WRITTEN["regimes"]["eight"],
                    "arms": {"grpo": {}, "etr": {"method.mirco": 0.0}},
                }
            },
            "regimes.eight.arms.etr: method.mirco micro",
        ),
        (
            {"eight": {**WRITTEN["regimes"]["eight"], "arms": {"grpo": {}, "ert": {}}}},
            "etr.yaml",
        ),
        (
            {
                "eight": {
                    **WRITTEN["regimes"]["eight"],
                    "bases": 2,
                    "arms": {"grpo": {}, "etr": {"config": "smollm2.yaml"}},
                }
            },
            "regimes.eight.arms.etr: regimes.eight.bases",
        ),
    ],
)
def test_mistakes_are_said_before_anything_runs(tmp_path, regimes, said):
    with pytest.raises(ConfigError) as error:
        design.runs(study(tmp_path, **regimes))
    assert Says(said) in str(error.value).splitlines()


def test_seeds_from_the_first_one_on(tmp_path):
    later = {**WRITTEN["regimes"]["eight"], "first_seed": 7}
    _, cells = design.runs(study(tmp_path, eight=later))
    assert sorted({c.seed for c in cells if c.regime == "eight"}) == [7, 8, 9]
    assert sorted({c.seed for c in cells if c.regime == "parts"}) == [0, 1]


@pytest.mark.parametrize(
    ("name", "every", "tuning"),
    [("quick", 24, 8), ("full", 640, 96), ("mismatch", 1310, 0), ("board", 910, 288)],
)
def test_shipped_studies_are_valid(name, every, tuning):
    plan = design.load(f"study/{name}.yaml", [])
    assert len(design.runs(plan)[0]) == every
    assert len(design.runs(sweeps(plan))[0]) == tuning
