"""NeMo-RL's own configs: they run, so nothing here may refuse them."""

import copy
import dataclasses
import functools
import importlib.util
import pickle
from pathlib import Path

import pytest
from matrix import some_of
from model_facts import facts_of
from omegaconf import DictConfig, OmegaConf
from releases import MAIN

from nemo_algos.preflight.check import judge as check
from nemo_algos.preflight.check.rules import data
from nemo_algos.preflight.plan.layouts import gpu_of, plan
from nemo_algos.preflight.plan.nemo_rl_arguments import GPUS
from nemo_algos.preflight.plan.search import possible

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location("base_configs", ROOT / "scripts/base_configs.py")
assert SPEC and SPEC.loader
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)
# what they leave to the user, or fail at
KNOWN = {
    "policy.model_name": ("deepseek", "dsv3"),  # "Follow instructions in ..."
    "policy.dtensor_cfg.cpu_offload": ("sliding_puzzle",),  # automodel/setup.py:501 raises
    "grpo.batch_multiplier": ("prorlv2_1_moe",),  # grpo.py:571 raises
    "policy.megatron_cfg.defer_fp32_logits": ("mmpr-4n8g-megatron",),  # megatron/setup.py:1245
    "env.math.math_verify_impl": ("dapo-deepseek-v3",),  # a benchmark of speed: rewards are 0
}


def trees(configs):
    """As OmegaConf takes each in, in a third of its time: the first, and changes of copies."""
    whole, like = {}, next(iter(configs.values()))
    first = pickle.dumps(OmegaConf.create(like))
    for name, config in configs.items():
        whole[name] = pickle.loads(first)
        change(whole[name], like, config)
        assert OmegaConf.to_container(whole[name]) == config, name
    return whole


def change(tree: DictConfig, was, now):
    for key in was.keys() - now.keys():
        del tree[key]
    for key, value in now.items():
        if isinstance(was.get(key), dict) and isinstance(value, dict):
            change(tree[key], was[key], value)
        elif key not in was or repr(was[key]) != repr(value):
            tree[key] = value


each_third = pytest.mark.parametrize("first", some_of(range(3), 1))


@functools.cache
def composed(first):
    """By name, each third config from this one on."""
    some = dict([*MAIN.grpo.items()][first::3])
    assert len(some) > 45
    return script.composed(dataclasses.replace(MAIN, trees=trees(some)), some)


@each_third
def test_no_rule_refuses_them(first, monkeypatch):
    monkeypatch.setenv("HF_HOME", "/hub")
    monkeypatch.setenv("NRL_IGNORE_TP_ACCURACY_CHECK", "1")  # as their launch scripts do
    monkeypatch.setattr(check, "CONFLICTS", ())  # with our methods, no rules of NeMo-RL
    theirs = [rule for rule in check.RULES if rule.__module__ != data.__name__]  # what runs with us
    monkeypatch.setattr(check, "RULES", theirs)
    for name, made in composed(first).items():
        for f in check.judge_composed(made._replace(plain=copy.deepcopy(made.plain)))[1]:
            known = any(part in name for part in KNOWN.get(f.path, ()))
            assert known or f.severity != "error", (name, f)


@each_third
def test_none_is_called_impossible(first):
    seen = 0
    for name, made in composed(first).items():
        if (facts := facts_of(name, made.plain)) is None:
            continue
        p = plan(made.plain, facts, GPUS[gpu_of(made.plain)])
        assert p.trains and p.generates and possible(p.run), (name, p.training)
        seen += 1
    assert seen > 40


@pytest.mark.long
def test_the_page_is_current():
    """docs/base_configs.md is what check says now of every GRPO config of the shipped NeMo-RL."""
    made = composed(0) | composed(1) | composed(2)
    page = script.page({name: made[name] for name in MAIN.grpo}, MAIN.name)
    assert (ROOT / "docs" / "base_configs.md").read_text() == page, "run scripts/base_configs.py"
    assert page.count("\n- **") > 15
