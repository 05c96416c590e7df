"""Methods that read parts of the reward, or what each turn has earned, where nothing gives them."""

from dataclasses import replace

import pytest
from releases import MAIN
from says import Says

from nemo_algos.preflight.check.judge import check

BY_TURN = "method.name=turn_rloo"


def findings(config, *overrides, release=MAIN):
    return {f.path: f for f in check(config, overrides, release) if f.severity != "note"}


@pytest.mark.parametrize(
    ("config", "overrides", "path", "words"),
    [
        ("nemo_rl.yaml", [], "data.train.env_name", "turn_rloo turn_1 turn_2"),
        ("nemo_rl.yaml", ["grpo.reward_scaling.enabled=true"], "grpo.reward_scaling.enabled", ""),
        ("single_controller.yaml", [], "async_rl", "turn_rloo"),
    ],
)
def test_by_turn(config, overrides, path, words):
    found = findings(config, BY_TURN, *overrides)
    assert path in found, found
    assert str(found[path]) == Says(f"{path}: {words}")


def test_gym_keeps_the_sum_in_an_older_nemo_rl():
    facts = {**MAIN.facts, "NeMo Gym gives rewards in parts": False}
    older = replace(MAIN, facts=facts)
    path = "env.should_use_nemo_gym"
    for method in ("gdpo", "turn_etr"):
        given = [f"method.name={method}", f"{path}=true"]
        assert path not in findings("nemo_rl.yaml", *given)
        assert findings("nemo_rl.yaml", *given, release=older)[path].severity == "warning"
    assert path not in findings("nemo_rl.yaml", "method.name=etr", f"{path}=true", release=older)
