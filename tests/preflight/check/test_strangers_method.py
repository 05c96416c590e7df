"""A record under another name is judged as under its own: nothing knows a method by its name."""

import copy
import sys
from dataclasses import replace
from functools import cache
from types import ModuleType

import pytest
from releases import MAIN

from nemo_algos import METHODS
from nemo_algos.config import SHIPPED, apply_overrides, read, resolve
from nemo_algos.preflight.check import judge
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
