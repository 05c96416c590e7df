"""Every key of the embedded engine is honoured, refused, or neutral; every method trains in it."""

import hashlib
import math
import typing

import pytest
import torch
import trainers
from matrix import some_of
from pydantic import BaseModel
from short_runs import metrics, short_warm_start, train  # noqa: F401

from nemo_algos import config
from nemo_algos.algorithms.methods import METHODS, STUDIED
from nemo_algos.config import SHIPPED
from nemo_algos.engines.data.tasks import Puzzles
from nemo_algos.engines.local.schema import GenerationSection, LocalConfig, Shape
from nemo_algos.engines.local.tiny import Tiny
from nemo_algos.engines.local.tiny_policy import TinyPolicy
from nemo_algos.engines.rewards import Verdict
from nemo_algos.findings import ConfigError
from nemo_algos.preflight.check.local.judge import judge

BASE = ["grpo.max_num_steps=2", "loss_fn.reference_policy_kl_penalty=0.05", "mismatch.threshold=1"]
DTENSOR = "policy.dtensor_cfg"
NOISE, VALIDATED = "policy.precision=nvfp4", "grpo.val_period=1"
MOE, IS = "policy.model_name=countdown-tiny-moe", "loss_fn.use_importance_sampling_correction=true"
TIS = "loss_fn.truncated_importance_sampling"
BOUNDS = [NOISE, IS, f"{TIS}_type=icepop", f"{TIS}_ratio=1.5", f"{TIS}_ratio_min=0.9"]
RS = [NOISE, "rollout_correction.rollout_rs=token_k1", "rollout_correction.rollout_rs_threshold=2"]
WEIGHED = [NOISE, "rollout_correction.rollout_is=token"]
DUMB = ["checkpointing.save_period=1", "grpo.max_num_steps=3"]

# key: the value that something observable changes by; with a list, what else both runs have
HONOURED = {
    "method": "{name: gspo}",
    "grpo.num_prompts_per_step": 2,
    "grpo.num_generations_per_prompt": 2,
    "grpo.max_num_steps": 1,
    "grpo.num_update_epochs": 2,
    "grpo.seed": 1,
    "grpo.val_samples_per_prompt": 8,
    "grpo.max_val_samples": 1,
    "grpo.val_period": 1,
    "grpo.val_at_start": "false",
    "grpo.val_at_end": "false",
    "grpo.stop_at_validation_threshold": (
        [
            "grpo.val_at_start=false",
            VALIDATED,
            "grpo.stop_at_validation_metric=accuracy",
            "+grpo.stop_at_validation_threshold=2",
        ],
        0,
    ),
    "policy.model_name": "countdown-tiny-moe",
    "policy.shape.width": 32,
    "policy.shape.layers": 1,
    "policy.shape.heads": 2,
    "policy.shape.hidden": 32,
    "policy.shape.experts": 4,
    "policy.taught.seed": 1,
    "policy.taught.steps": 3,
    "policy.train_global_batch_size": 16,
    "policy.max_grad_norm": 0.001,
    "policy.optimizer.name": "torch.optim.Adam",
    "policy.optimizer.kwargs": "{lr: 0.01}",
    "policy.scheduler": "[]",
    "policy.generation.max_new_tokens": 14,
    "policy.generation.temperature": 0.5,
    "policy.generation.top_p": 0.5,
    "policy.generation.top_k": 2,
    "policy.generation.min_p": 0.5,
    "policy.generation.support_replay": (["policy.generation.top_k=3"], "true"),
    "policy.router_replay.enabled": ([MOE, NOISE], "true"),
    "loss_fn.reference_policy_kl_penalty": 0.5,
    "loss_fn.reference_policy_kl_type": "k1",
    "loss_fn.use_importance_sampling_correction": ([NOISE], "true"),
    f"{TIS}_type": (BOUNDS, "seq-mask-tis"),
    f"{TIS}_ratio": (BOUNDS, 1.1),
    f"{TIS}_ratio_min": (BOUNDS, 0.99),
    "rollout_correction.preset": ([NOISE], "decoupled_token_is"),
    "rollout_correction.rollout_is": (WEIGHED, "sequence"),
    "rollout_correction.rollout_is_threshold": (WEIGHED, 1.05),
    "rollout_correction.rollout_is_batch_normalize": (WEIGHED, "true"),
    "rollout_correction.rollout_rs": (RS, "seq_sum_k1"),
    "rollout_correction.rollout_rs_threshold": (RS, 1.01),
    "rollout_correction.bypass_mode": ([NOISE], "true"),
    "old_policy": ([NOISE], "sampler"),
    "mismatch.threshold": ([NOISE], 0.01),
    "mismatch.stop_above": ([NOISE], 0.001),
    "mismatch.dump": 1,
    "mismatch.probe": 1,
    "data.numbers": (["policy.generation.max_new_tokens=18"], 4),
    "data.use_all": "false",
    "logger.num_val_samples_to_print": 0,
    "logger.tensorboard_enabled": "true",
    "logger.trace_period": 0,
    "logger.traced_prompts": 1,
    "checkpointing.enabled": "false",
    "checkpointing.save_period": 1,
    "checkpointing.keep_top_k": (DUMB, 1),
    "checkpointing.metric_name": ([*DUMB, "checkpointing.keep_top_k=1"], "train:length/mean"),
    "checkpointing.higher_is_better": (
        [*DUMB, "checkpointing.keep_top_k=1", "checkpointing.metric_name=train:length/mean"],
        "false",
    ),
}
# key: the override, which is refused at it, at the section that it is in, or at one of ELSEWHERE
REFUSED = {
    "engine": "engine=other",
    "grpo.stop_at_validation_metric": "grpo.stop_at_validation_metric=accuracy",
    # it says what the method has to be, and changes nothing
    "rollout_correction.loss_type": "rollout_correction={bypass_mode: true, loss_type: reinforce}",
    "policy.tokenizer.name": "policy.tokenizer.name=x",
    "policy.tokenizer.chat_template": "policy.tokenizer.chat_template=x",
    "policy.tokenizer.pad_token": "policy.tokenizer.pad_token=x",
    "policy.precision": "policy.precision=bfloat16",
    f"{DTENSOR}.activation_checkpointing": f"{DTENSOR}.activation_checkpointing=true",
    f"{DTENSOR}.lora_cfg.enabled": f"{DTENSOR}.lora_cfg.enabled=true",
    f"{DTENSOR}.lora_cfg.dropout": f"{DTENSOR}.lora_cfg.dropout=.1",
    "data.prompt": "data.prompt='Solve {problem}'",
    "data.answer_prefix": "data.answer_prefix=x",
    "data.system_prompt": "data.system_prompt=x",
    "data.task": "data.task=math",
    "data.max_input_seq_length": "data.max_input_seq_length=3",
    "data.verifier": "data.verifier=math:gcd",
    "data.rewards": "data.rewards.one.function=nemo_algos.engines.rewards.math:verify_math",
    "data.verifier_workers": "data.verifier_workers=2",
    **{
        f"data.{split}.{key}": f"data.{split}={{data_path: x.jsonl, {key}: x.jsonl}}"
        for split in ("train", "validation")
        for key in ("subset", "split", "input_key", "output_key")
    },
    "data.train.data_path": "data.train.data_path=x.jsonl",
    "data.validation.data_path": "data.validation.data_path=x.jsonl",
}
ELSEWHERE = {"data.task": "policy.model_name", "data.train": "data.task"}
ELSEWHERE |= {"data.validation": "data.task"}
OFF = "of what is off"
NEUTRAL = {
    **dict.fromkeys(("policy.train_micro_batch_size", "policy.generation_batch_size"), "memory"),
    **dict.fromkeys(
        ("policy.dynamic_batching.enabled", "policy.dynamic_batching.train_mb_tokens"), "memory"
    ),
    **dict.fromkeys(
        ("policy.device", "policy.taught.device", "policy.threads"), "where it is computed"
    ),
    "loss_fn.on_nonfinite": "test_step_metrics.py",
    **{
        f"{DTENSOR}.lora_cfg.{key}": OFF
        for key in ("alpha", "dim", "exclude_modules", "lora_A_init", "match_all_linear")
    },
    f"{DTENSOR}.lora_cfg.target_modules": OFF,
    "logger.log_dir": "its place",
    **{f"logger.{name}_enabled": "a library that may be missing" for name in ("mlflow", "trackio")},
    "logger.wandb_enabled": "a library that may be missing",
    **{f"logger.{key}": OFF for key in ("trackio.name", "trackio.project", "wandb.entity")},
    **{f"logger.{key}": OFF for key in ("wandb.name", "wandb.project", "mlflow.run_name")},
    **{f"logger.mlflow.{key}": OFF for key in ("experiment_name", "tracking_uri")},
}


def leaves(model, above=""):
    """The paths of a schema's values, through sections and what may be null."""
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *typing.get_args(field.annotation))
        section = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
        if section and typing.get_origin(field.annotation) not in (list, dict):
            yield from leaves(section, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def test_every_key_is_in_one_list():
    lists = [*HONOURED, *REFUSED, *NEUTRAL]
    assert sorted(lists) == sorted(leaves(LocalConfig))


@pytest.fixture(autouse=True)
def some_are_right(monkeypatch):
    """The policy knows nothing after so short a warm start: groups would all be flat."""

    def verify(self, examples, responses):
        return [Verdict(float(len(response) % 2), "ok") for response in responses]

    monkeypatch.setattr(Puzzles, "verify", verify)


SEEN = {}


def seen(folder, *overrides):
    """What anybody can see of a run, but for its times."""
    if overrides in SEEN:
        return SEEN[overrides]
    said = ""
    try:
        said = train(folder, *BASE, *overrides, name="grpo.yaml")
    except FloatingPointError as error:  # of mismatch.stop_above
        return str(error)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    names = [p.relative_to(folder).as_posix().partition(".tfevents")[0] for p in files]
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files if p.name in KEPT}
    lines = [line for line in said.splitlines() if "warm start" not in line]  # of the first alone
    SEEN[overrides] = metrics(folder), names, digests, len(lines)
    return SEEN[overrides]


KEPT = ("model.safetensors", "trace.jsonl")


@pytest.mark.parametrize("key", some_of(HONOURED, 6))
def test_it_changes_what_is_seen(key, tmp_path):
    given = HONOURED[key]
    context, value = given if isinstance(given, tuple) else ([], given)
    usual = seen(tmp_path / "usual", *context)
    assert seen(tmp_path / "other", *context, f"{key}={value}") != usual


@pytest.mark.parametrize("key", REFUSED)
def test_it_is_refused_by_name(key):
    with pytest.raises(ConfigError) as error:
        judge(config.load(SHIPPED / "grpo.yaml", [REFUSED[key]]))
    allowed = [key, *(path for above, path in ELSEWHERE.items() if key.startswith(above))]
    paths = [finding.path for finding in error.value.findings]
    assert [p for p in paths if p in allowed or f"{key}.".startswith(f"{p}.")], paths


GENTLE = {"name": "torch.optim.AdamW", "kwargs": {"lr": 1e-4}}  # dr_grpo's gradient is small
HALF = ("grpo.num_prompts_per_step=4", "policy.train_global_batch_size=8")
# with rewards, prompts, a teacher or turns of their own: test_extensions, test_two_policies
OTHERWISE = {"gdpo", "dvao", "spo", "ema_baseline", "opd", "turn_rloo", "turn_etr", "turn_quatro"}
STEPS = {"pass_at_k": 12}  # most of its groups are flat
OWN = dict.fromkeys(("high_entropy", "clip_cov", "m2po"), "chosen_share")


def small():
    """Of one layer, with responses of six tokens."""
    torch.manual_seed(0)
    model = Tiny(Shape(layers=1))
    model.embed.weight.data *= 2
    return TinyPolicy(model, GenerationSection(max_new_tokens=6))


TRAINED = [name for name in METHODS if name not in {*STUDIED, *OTHERWISE}]


@pytest.mark.parametrize("name", some_of(TRAINED, 6))
def test_it_trains(name):
    made = trainers.trainer(*HALF, method=name, optimizer=GENTLE, trained=small())
    before = trainers.weights(made)
    steps = [made.step() for _ in range(STEPS.get(name, 5))]
    assert all(math.isfinite(value) for row in steps for value in row.values())
    assert 1e-4 < float((trainers.weights(made) - before).abs().max()) < 0.1
    for row in steps:
        assert 0 <= row.get("clip/fraction", 0) <= 1  # none where no response has an advantage
        assert -1e-6 < row.get("kl/old", 0) < 0.5 and 0.1 < row.get("ratio/mean", 1) < 10
        own = [key for key in row if key.startswith(f"{name}/")]
        assert own == ([f"{name}/{OWN[name]}"] if name in OWN else [])
