"""A record under another name is judged as under its own: nothing knows a method by its name."""

import copy
import sys
from dataclasses import replace
from functools import cache
from types import ModuleType

import pytest
import torch
from batches import make
from releases import MAIN
from says import Says

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.config import SHIPPED, apply_overrides, read, resolve
from nemo_algos.preflight.check import judge
from nemo_algos.preflight.check.judge import check
from nemo_algos.preflight.check.local.judge import judge as judged_locally

HALF = "policy.train_global_batch_size=256"
RUNS = [
    [],
    [HALF, "grpo.use_dynamic_sampling=true"],
    [HALF, "grpo.reward_shaping.enabled=true"],
    [HALF, "grpo.reward_scaling.enabled=true"],
    [HALF, "grpo.num_generations_per_prompt=2", "grpo.num_prompts_per_step=256"],
    [HALF, "policy.max_grad_norm=0"],
    [HALF, "policy.generation.top_p=0.9"],
    [HALF, "loss_fn.reference_policy_kl_penalty=0.01"],
    [HALF, "rollout_correction.preset=bypass_ppo_clip"],
]


@pytest.fixture(scope="module", autouse=True)
def copies():
    """Every record again, as MY_NAME of a module `copies` that is a stranger's."""
    module = ModuleType("copies")
    for name, method in METHODS.items():
        setattr(module, f"MY_{name}".upper(), replace(method, name=f"my_{name}"))
    sys.modules["copies"] = module
    yield
    del sys.modules["copies"]


@cache
def composed(overrides):
    written = apply_overrides(read(SHIPPED / "nemo_rl.yaml"), overrides)
    return judge.compose(written, MAIN)


def verdict(method, overrides):
    """NeMo-RL's keys do not depend on the method, so they are composed once."""
    made = composed((*overrides,))
    plain, named = copy.deepcopy(made.plain), {"method": method}
    run = made._replace(plain=plain | named, written=made.written | copy.deepcopy(named))
    return judge.judge_composed(run)[1]


@pytest.mark.parametrize(("number", "name"), [*enumerate(METHODS)])
def test_a_copy_is_judged_as_the_original(number, name):
    """In a third of the runs, with its neighbours in all."""
    for overrides, values in (*((run, {}) for run in RUNS[number % 3 :: 3]), ([], odd(name))):
        both = name, f"copies:MY_{name.upper()}"
        ours, theirs = (verdict({"name": n, **values}, overrides) for n in both)
        renamed = [f._replace(message=f.message.replace(f"my_{name}", name)) for f in theirs]
        assert sorted(map(str, ours)) == sorted(map(str, renamed)), overrides
        assert [f.severity for f in ours] == [f.severity for f in renamed]


def odd(name):
    """Values far from the usual ones, where a number is allowed to be."""
    params = METHODS[name].params
    keys = [k for k, field in params.model_fields.items() if field.annotation is float]
    values = dict.fromkeys(keys, 0.9)
    for key in keys:
        try:
            params(**values)
        except ValueError:
            del values[key]
    return values


def test_a_verdict_depends_on_the_record():
    """So that equal verdicts are not equal because nothing is judged."""
    sampled = RUNS[1]
    found = {name: len(verdict({"name": name}, sampled)) for name in ("quatro", "grpo")}
    assert found["quatro"] > found["grpo"]


@pytest.mark.parametrize("name", ["etr", "erpo", "apmpo", "maxrl", "dr_grpo"])
def test_the_embedded_engine_too(name):
    written = ["grpo.num_generations_per_prompt=1", "policy.generation.max_new_tokens=3"]
    found = []
    for named in (name, f"copies:MY_{name.upper()}"):
        merged = apply_overrides(read(SHIPPED / "grpo.yaml"), [f"method.name={named}", *written])
        with pytest.raises(ValueError) as raised:
            judged_locally(resolve(merged))
        found.append(str(raised.value).replace(f"my_{name}", name))
    assert found[0] == found[1] and found[0]


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


# of these few tokens with their defaults: one, and all
FELT = {"clip_cov": {"share": 0.2}, "m2po": {"threshold": 0.004}, "kl_cov": {"share": 0.2}}
GROUPS = ((0.0, 1.0) * 3, (0.0, 0.0, 1.0), (0.0, 0.5, 0.25, 1.0), (0.0,) * 16)


def driver_half(name, rollouts):
    """What the method computes of these rollouts in its driver half, [B,..]."""
    made = build({"name": name, **FELT.get(name, {})}).signals(rollouts, {})
    found = {"advantages": made.advantages, "low": made.low, "high": made.high, **made.extras}
    return {k: v for k, v in found.items() if isinstance(v, torch.Tensor) and v.ndim}


def depends_on_the_others(name):
    """Whether a group's numbers change where another group is left out."""
    rollouts = make(rewards=GROUPS).rollouts
    whole = driver_half(name, rollouts)
    for left_out in (rollouts.group.max(), rollouts.group.min()):  # all rewards equal; mixed
        rest = rollouts.group != left_out
        alone = driver_half(name, rollouts[rest])
        if any(not torch.allclose(v[rest], alone[k], atol=1e-9) for k, v in whole.items()):
            return True
    return False


def test_the_methods_that_need_the_whole_batch_are_listed():
    whole = {n for n, m in METHODS.items() if m.whole_batch or m.params().whole_batch}
    remembering = {name for name, method in METHODS.items() if "memory" in method.needs}
    assert {name for name in METHODS if depends_on_the_others(name)} - remembering == whole
    assert {"apmpo", "clip_cov", "reinforce_pp", "gdpo"} <= whole
