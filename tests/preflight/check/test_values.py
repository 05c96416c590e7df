"""Values that NeMo-RL's own types, or its code, cannot take, or that stand in a section's place."""

import json
from typing import get_args, get_origin

import pytest
from matrix import some_of
from pydantic import BaseModel
from releases import MAIN

from nemo_algos.config import apply_overrides, find, read, resolve
from nemo_algos.engines.local.schema import LocalConfig
from nemo_algos.engines.nemo.derived_config import OURS
from nemo_algos.findings import ConfigError, validate
from nemo_algos.preflight.check.judge import check
from nemo_algos.preflight.check.rules import values
from nemo_algos.preflight.check.rules.values import expected, fits

LORA = "policy.dtensor_cfg.lora_cfg"
GENERATION = "policy.generation"
# what passed once, and died in the run or trained on something else
MISTAKES = [
    ("checkpointing.save_period=0", "error"),
    ("checkpointing.ft_save_period=0", "error"),
    ("data.max_input_seq_length=-1", "error"),
    ("data.max_input_seq_length=0", "error"),
    ("data.num_workers=-1", "error"),
    ("data.train.seed=-1", "error"),
    ("data.train.split_validation_size=-0.1", "error"),
    ("data.add_bos=true", "warning"),
    ("data.validation.chosen_key=better", "warning"),
    ("data.default.min_generation_tokens=5", "warning"),
    ("data.train.num_frames=many", "error"),
    ("env.math.num_workers=0", "error"),
    ("env.math.stop_strings=abc", "error"),
    ("grpo.max_num_epochs=0", "error"),
    ("grpo.max_rollout_turns=0", "error"),
    ("grpo.max_val_samples=0", "error"),
    ("grpo.seed=-5", "error"),
    ("grpo.seed=null", "error"),
    ("grpo.val_num_generations_per_prompt=0", "error"),
    ("loss_fn.kl_input_clamp_value=-1", "error"),
    ("loss_fn.kl_output_clamp_value=0", "error"),
    ("loss_fn.on_nonfinite=raise", "error"),
    ("logger.num_val_samples_to_print=-1", "error"),
    ("policy.dynamic_batching.train_mb_tokens=0 policy.dynamic_batching.enabled=true", "error"),
    ("policy.logprob_chunk_size=0", "error"),
    ("policy.dtensor_cfg._v2=null", "error"),
    ("policy.refit_buffer_size_gb=0", "error"),
    ("policy.sequence_packing.microbatch_order=longest", "error"),
    ("policy.sequence_packing.train_mb_tokens=-1", "error"),
    (f"{GENERATION}.max_new_tokens=0", "error"),
    (f"{GENERATION}.stop_strings=abc", "error"),
    (f"{GENERATION}.stop_token_ids=5", "error"),
    (f"{GENERATION}.stop_token_ids=[a]", "error"),
    (f"{GENERATION}.temperature=-1", "error"),
    (f"{GENERATION}.top_p=0", "error"),
    (f"{GENERATION}.top_p=1.2", "error"),
    (f"{GENERATION}.vllm_cfg.gpu_memory_utilization=1.2", "error"),
    (f"{GENERATION}.vllm_cfg.use_tqdm=maybe", "error"),
    (f"{GENERATION}.vllm_kwargs.enable_sleep_mode=false", "error"),
    (f"{GENERATION}.vllm_kwargs.max_num_seq=64", "warning"),  # of another vLLM, perhaps
    (f"{LORA}.dim=0 {LORA}.enabled=true", "error"),
    (f"{LORA}.dropout_position=between {LORA}.enabled=true", "error"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "severity"), MISTAKES, ids=lambda x: x)
def test_a_value_that_no_run_can_take_is_named(overrides, severity):
    key = overrides.partition("=")[0]
    found = {f.path: f.severity for f in check("nemo_rl.yaml", overrides.split(), MAIN)}
    assert found.get(key) == severity, found


TAKEN = [
    "checkpointing.metric_name=train:loss checkpointing.higher_is_better=false",
    "data.train.split_validation_size=0",
    "data.train.split_validation_size=256",
    "grpo.max_num_epochs=2.0",
    "grpo.val_period=0",
    "policy.sequence_packing.microbatch_order=largest_first",
    f"{GENERATION}.stop_token_ids=[5]",
    f"{GENERATION}.stop_strings=[abc]",
    f"{GENERATION}.vllm_cfg.env_vars=null",
    f"{GENERATION}.vllm_kwargs.moe_backend=triton",
    f"{GENERATION}.vllm_kwargs.max_num_seqs=64",
    f"{LORA}.target_modules=['*_proj'] {LORA}.match_all_linear=false {LORA}.enabled=true",
]


@pytest.mark.parametrize("overrides", TAKEN)
def test_a_value_that_nemo_rl_takes_is_left_alone(overrides):
    keys = {one.partition("=")[0] for one in overrides.split()}
    found = check("nemo_rl.yaml", overrides.split(), MAIN)
    assert not [f for f in found if f.severity != "note" and f.path in keys]


def test_the_controllers_section_may_be_null():
    """A base config of the single controller then runs without it."""
    found = check("single_controller.yaml", ["async_rl=null"], MAIN)
    assert [f for f in found if f.severity == "error"] == []


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer"}, [0, -1, 2.0], [True, 1.5, "1", None, [1], float("nan"), 1e300]),
        ({"type": "number", "exclusiveMinimum": 0}, [0.1, 1], [0, -1, False, "0.1"]),
        ({"type": "number", "minimum": 0, "maximum": 1}, [0, 1, 0.5], [1.1, -0.1]),
        ({"type": "boolean"}, [True, False], [0, 1, "true", None]),
        ({"type": "string"}, ["", "a"], [1, True, None]),
        ({"enum": ["a", "b"]}, ["a"], ["c", None]),
        ({"anyOf": [{"const": True}, {"const": False}]}, [True, False], [0, 1, "x"]),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, [1, None], [0, "1"]),
        ({"type": "array", "items": {"type": "integer"}}, [[], [1]], [["a"], 1, "a"]),
        ({"type": "object"}, [{}], [[], 1]),
        ({}, [1, "a", None, []], []),
    ],
)
def test_a_schema_judges_a_value(schema, right, wrong):
    assert all(fits(schema, value) for value in right)
    assert not any(fits(schema, value) for value in wrong)
    assert not wrong or expected(schema)


# whole numbers that may be below 0: -1 stands for all or never, or a rule of its own judges them
BELOW_0 = {
    "grpo.val_period",
    "grpo.val_start_at",
    "policy.generation._pad_token_id",
    "policy.generation.top_k",
    "policy.generation.val_top_k",
    "policy.max_grad_norm",
}
# where 0 means off, none, the first, or any
AT_0 = (
    "async_rl.rollout_failure.max_", "async_rl.rollout_failure.replacement_reserve_prompts",
    "async_rl.sampler.max_",
    "cluster.master_port_range", "data.default.min_", "data.default.seed", "data.num_workers",
    "data.train.min_", "data.train.seed", "data.validation.min_", "data.validation.seed",
    "checkpointing.ft_keep_latest_k", "checkpointing.keep_top_k",
    "grpo.async_grpo.max_generation_failures", "grpo.reward_shaping.overlong_buffer_length",
    "grpo.seed", "logger.num_val_samples_to_print", "policy.generation.port_range",
    "policy.generation.refit_cfg.sparse", "policy.generation.vllm_cfg.http_refit_server_port",
    "policy.generation.vllm_cfg.zmq_refit_server_port", "policy.megatron_cfg.cuda_graph_warmup",
    "policy.megatron_cfg.empty_unused_memory_level", "policy.megatron_cfg.mtp_num_layers",
    "policy.megatron_cfg.scheduler.lr_warmup_iters", "reward_penalties.token_ids",
)  # fmt: skip


def test_no_whole_number_is_below_its_range():
    """All of NeMo-RL's keys, with -1 and with 0."""
    plain = {"policy": {"generation": {"backend": "vllm"}}}
    judging = values._judging(plain, MAIN)
    whole = {path: kind for path, kind in judging.items() if '"integer"' in json.dumps(kind)}
    assert len(whole) > 80
    assert {path for path, kind in whole.items() if fits(kind, -1)} <= BELOW_0
    zero = {path for path, kind in whole.items() if fits(kind, 0)} - BELOW_0
    assert not {path for path in zero if not path.startswith(AT_0)}


def _whole_numbers(annotation, path):
    if get_origin(annotation) is list:
        return
    if annotation is int:
        yield path
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from _whole_numbers(field.annotation, f"{path}.{name}".removeprefix("."))
    else:
        for part in get_args(annotation):
            yield from _whole_numbers(part, path)


@pytest.mark.parametrize("path", dict.fromkeys(_whole_numbers(LocalConfig, "")))
def test_no_whole_number_of_the_embedded_engine_is_below_its_range(path):
    """What a run could not honour is refused by the schema: no -1 stands for anything."""
    with pytest.raises(ConfigError) as error:
        validate(LocalConfig, resolve(apply_overrides(read(find("etr.yaml")), [f"{path}=-1"])))
    assert any(f.path.startswith(path) for f in error.value.findings)


def test_the_embedded_engine_asks_for_the_models_own_tokenizer():
    found = check("math.yaml", ["policy.model_name=one", "policy.tokenizer.name=other"], MAIN)
    assert "policy.tokenizer.name" in [f.path for f in found if f.severity == "error"]


ONE, USUAL = "nemo_rl.yaml", "grpo_math_1B.yaml"
MAY_BE_EMPTY = {"mismatch", "on_policy_distillation", "data.validation"}  # as a list of none


def sections(config, above=""):
    for key, value in config.items():
        if isinstance(value, dict):
            yield f"{above}{key}"
            yield from sections(value, f"{above}{key}.")


def errors(override):
    return [f for f in check(ONE, [override], MAIN) if f.severity == "error"]


@pytest.mark.parametrize("third", some_of(range(3), 1))
def test_a_value_in_place_of_a_section_is_refused_by_name(third):
    """Those within others by thirds."""
    own = [name for name in OURS if name != "engine"] + ["data.validation"]
    walked = [*own, *sections(MAIN.configs[USUAL])]
    assert len(walked) > 40
    within = [path for path in walked if "." in path]
    for path in [*(path for path in walked if "." not in path), *within[third::3]]:
        for value in ("3", "null") if "." in path else ("3", "x", "[]", "null"):
            found = errors(f"{path}={value}")
            told = {f.path for f in found if f.path and f"{f.path}.".startswith(f"{path}.")}
            assert told or value == "null" or (value, path) in {("[]", p) for p in MAY_BE_EMPTY}
            assert not [f for f in found if "nterpol" in f.message or not f.path], (path, value)


@pytest.mark.parametrize("value", ["true", "3", "x"])
def test_a_value_in_place_of_a_list_is_refused(value):
    assert [f.path for f in errors(f"policy.scheduler={value}")] == ["policy.scheduler"]


def test_a_method_s_name_alone_is_a_method():
    assert not errors("method=grpo")
    (found,) = errors("method=grop")
    assert found.path == "method.name" and "grpo" in found.message


def test_null_where_other_keys_take_their_values_names_the_section():
    recipe = "recipes/erpo-qwen2.5-7b-1n1g-lora.yaml"
    found = [f for f in check(recipe, ["logger.wandb=null"], MAIN) if f.severity == "error"]
    assert [f.path for f in found] == ["logger.wandb"]


@pytest.mark.parametrize("name", [name for name in OURS if name != "engine"])
def test_a_key_that_nobody_knows_is_refused_in_every_section_of_ours(name):
    found = errors(f"{name}.zzz=1")
    assert any(f"{f.path}.".startswith(f"{name}.") for f in found), found
