"""recipes/cpu: the NeMo-RL run for a laptop is sound, and the embedded one beside it the same."""

import json

import pytest
from asked_conflicts import conflicts
from releases import MAIN

from nemo_algos import config
from nemo_algos.algorithms.build import build
from nemo_algos.config import SHIPPED
from nemo_algos.engines.local.schema import Shape
from nemo_algos.engines.local.tiny import hf_config
from nemo_algos.findings import at
from nemo_algos.preflight.check.compose import compose
from nemo_algos.preflight.check.judge import check

FOLDER = SHIPPED / "recipes" / "cpu"
RUNS = [path.name for path in sorted(FOLDER.glob("*g-*.yaml"))]
METHODS = ("grpo", "etr", "quatro", "erpo", "apmpo")
SAME = [
    *(f"grpo.{k}" for k in ("num_prompts_per_step", "num_generations_per_prompt", "max_num_steps")),
    "grpo.seed",
    *(f"policy.{k}" for k in ("train_global_batch_size", "max_grad_norm", "optimizer.name")),
    *(f"policy.optimizer.kwargs.{k}" for k in ("lr", "betas", "weight_decay")),
    *(f"policy.generation.{k}" for k in ("max_new_tokens", "temperature", "top_p")),
]


def composed(name, *overrides):
    written = config.apply_overrides(config.read(FOLDER / name), overrides)
    return compose(written, MAIN)


@pytest.mark.parametrize("name", RUNS)
def test_it_is_sound_with_every_method(name):
    for method in METHODS:
        made = composed(name, f"method.name={method}")
        assert made.unknown == []
        assert conflicts(made.plain, made.written, build(made.plain["method"])) == []
        assert at(made.plain, "logger.wandb.name") == f"{method}-{name.removesuffix('.yaml')}"


@pytest.mark.long  # transformers builds the model's modules
@pytest.mark.parametrize("name", RUNS)
def test_with_its_start_nothing_is_warned_of(name, tmp_path, monkeypatch):
    """tests/test_own_configs.py has a stand-in for the model of `nemo-algos export`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start/model").mkdir(parents=True)
    (tmp_path / "start/model/config.json").write_text(json.dumps(hf_config(Shape())))
    found = check(str(FOLDER / name), [], MAIN)
    assert not [f for f in found if f.severity != "note"]


def test_megatron_has_the_same_optimizer():
    plain = composed("countdown-1n1g-megatron.yaml").plain
    section, fsdp = plain["policy"]["megatron_cfg"], composed("countdown-1n1g-fsdp.yaml")
    adam, kwargs = section["optimizer"], fsdp.plain["policy"]["optimizer"]["kwargs"]
    ours = (adam["lr"], adam["min_lr"], [adam["adam_beta1"], adam["adam_beta2"]])
    assert ours == (kwargs["lr"], kwargs["lr"], kwargs["betas"])
    assert adam["weight_decay"] == kwargs["weight_decay"] and adam["adam_eps"] == kwargs["eps"]
    warmup, scheduler = fsdp.plain["policy"]["scheduler"][0]["kwargs"], section["scheduler"]
    assert scheduler["lr_warmup_iters"] == warmup["total_iters"]
    assert scheduler["lr_warmup_init"] == pytest.approx(kwargs["lr"] * warmup["start_factor"])
    assert scheduler["lr_decay_style"] == "constant"


def test_both_engines_run_the_same():
    local = config.load(FOLDER / "countdown.yaml")
    plain = composed("countdown-1n1g-fsdp.yaml").plain
    ours = {key: at(local, key) for key in SAME}
    ours["policy.generation.top_p"] = 1.0  # the schema's default
    assert {key: at(plain, key) for key in SAME} == ours
    assert at(plain, "policy.scheduler")[0] == at(local, "policy.scheduler")[0]
    assert at(plain, "loss_fn.reference_policy_kl_penalty") == 0
    assert not at(plain, "data.shuffle")
