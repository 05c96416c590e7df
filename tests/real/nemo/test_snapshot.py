"""What `nemo-algos check` knows of NeMo-RL without it is what the checkout under test says."""

import importlib.util
import os
from importlib import import_module
from pathlib import Path

import pytest
from nemo_rl.algorithms import grpo
from nemo_rl.utils.config import (
    load_config,
    merge_with_override,
    register_omegaconf_resolvers,
)
from omegaconf import OmegaConf

from nemo_algos import config as strict
from nemo_algos.config import SHIPPED, ConfigError, resolve
from nemo_algos.engines.nemo import installed
from nemo_algos.engines.nemo.release import PURPOSES, purpose
from nemo_algos.preflight.check import launcher, snapshot

SCRIPT = Path(__file__).parents[3] / "scripts" / "snapshot_nemo_rl.py"
RECIPES = "recipes/llm/performance"


def script():
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(
    os.environ["NEMO_RL_REF"] == "3512", reason="a pull request's tree is older than main's"
)
def test_the_shipped_snapshot_is_the_checkout(ref):
    shipped, taken = snapshot.load(ref), script().taken()
    refresh = f"NeMo-RL {ref} has changed: PYTHONPATH=CHECKOUT:. python {SCRIPT} {ref}"
    assert shipped.schema == taken["schema"], refresh
    assert sorted(shipped.configs) == sorted(taken["configs"]), refresh
    for name, config in taken["configs"].items():
        assert shipped.configs[name] == config, f"{name}: {refresh}"


def test_a_config_for_grpo_is_one_with_its_section(ref, monkeypatch):
    """NeMo-RL's GRPO trainers cannot do without it, and none of its others knows it."""
    assert grpo.MasterConfig.model_fields["grpo"].is_required()
    for name in ("distillation", "dpo", "ppo", "rm", "sft"):
        other = import_module(f"nemo_rl.algorithms.{name}").MasterConfig
        assert "grpo" not in (getattr(other, "model_fields", None) or other.__annotations__)
    monkeypatch.setenv("HF_HOME", "/hub")
    register_omegaconf_resolvers()
    shipped = snapshot.load(ref)
    for config in shipped.grpo.values():
        grpo.MasterConfig(**resolve(OmegaConf.create(config)))
    kinds = {
        purpose(config) for name, config in shipped.configs.items() if name not in shipped.grpo
    }
    assert kinds == set(PURPOSES.values())


def written(*overrides):
    return strict.apply_overrides(strict.read(SHIPPED / "nemo_rl.yaml"), overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["nemo_rl.config=grpo_math_70B_megatron.yaml", "policy.train_micro_batch_size=2"],
        [
            f"nemo_rl.config={RECIPES}/grpo-qwen3-30ba3b-4n8g.yaml",
            "logger.log_dir=${policy.model_name}",
        ],
        ["env._override_=true", "env.math.num_workers=3"],
        ["env._override_=false", "policy.scheduler=${policy.optimizer.kwargs.betas}"],
    ],
    ids=["default", "megatron", "recipe", "override", "no override"],
)
def test_it_composes_as_nemo_rl_merges(ref, overrides):
    register_omegaconf_resolvers()
    config = written(*overrides)
    name = OmegaConf.select(config, "nemo_rl.config")
    merged = merge_with_override(load_config(installed.EXAMPLES / name), config.copy())
    assert snapshot.compose(config, snapshot.load(ref)).plain == resolve(merged)


def test_unknown_keys_are_those_of_the_launcher(ref):
    config = written("grpo.num_prompts_per_stepp=3", "policy.generation.vllm_cfg.is_mx=true")
    composed = snapshot.compose(config, snapshot.load(ref))
    assert composed.unknown
    with pytest.raises(ConfigError) as error:
        launcher.compose(config)
    assert composed.unknown == [p for p in error.value.findings if "unknown key" in p.message]
