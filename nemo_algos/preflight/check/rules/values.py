"""Values of a wrong type or range, put right in place so that the rules can judge the rest.

A value is judged by the JSON schema that the `Release` has for its key.
"""

import json
import re
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_algos.findings import Finding, at, sections_of, set_at
from nemo_algos.preflight.check.annotations import narrowed
from nemo_algos.preflight.check.keys import SPLITS
from nemo_algos.preflight.check.layout import SINGLE_CONTROLLER, VLLM
from nemo_algos.preflight.check.release import Release
from nemo_algos.preflight.check.training_rows import LARGEST, is_number

Schema = Mapping[str, Any]
NUMBERS = {"integer": "a whole number", "number": "a number"}
KINDS: dict[str, tuple[type, str]] = {
    "array": (list, "a list"),
    "boolean": (bool, "true or false"),
    "null": (NoneType, "null"),
    "object": (dict, "a section of key: value pairs"),
    "string": (str, "a text"),
}
# JSON schema's bounds: how a number is compared, and how that is said
BOUNDS = {
    "minimum": (lambda value, bound: value >= bound, "from {:g}"),
    "exclusiveMinimum": (lambda value, bound: value > bound, "above {:g}"),
    "maximum": (lambda value, bound: value <= bound, "to {:g}"),
    "exclusiveMaximum": (lambda value, bound: value < bound, "below {:g}"),
}
REFERENCE = re.compile(r"\$\{([\w.]+)\}")
COMPUTED = re.compile(r"\$\{(add|mul|div|max):")
REQUIRED = (
    "checkpointing", "cluster", "data", "grpo", "logger", "loss_fn", "policy", "data.train",
    "policy.dynamic_batching", "policy.generation", "policy.model_name", "policy.sequence_packing",
    "policy.tokenizer",
)  # fmt: skip
LISTS = ("data.train", "data.validation")  # a dataset, or a list of them
POSITIVE = (
    "cluster.gpus_per_node", "cluster.num_nodes", "grpo.max_num_steps",
    "grpo.num_generations_per_prompt", "grpo.num_prompts_per_step", "grpo.val_batch_size",
    "policy.logprob_batch_size", "policy.make_sequence_length_divisible_by",
    "policy.max_total_sequence_length", "policy.train_global_batch_size",
    "policy.train_micro_batch_size",
)  # fmt: skip
MOST = 10**9  # of what is counted
MCORE = "policy.megatron_cfg"
GENERATION = "policy.generation"
OURS = "grpo.adv_estimator"  # null confirms that the method's replaces it
ALSO_NULL = (OURS, SINGLE_CONTROLLER)  # async_rl: null is the controller's base config without it
# The ranges that NeMo-RL's types leave out. Beyond them its code divides by 0, takes no step or no
# row, or trains on something else in silence.
FROM_1 = (
    f"{SINGLE_CONTROLLER}.max_buffered_rollouts", f"{SINGLE_CONTROLLER}.max_inflight_prompts",
    f"{SINGLE_CONTROLLER}.min_groups_for_streaming_train", "data_plane.ack_timeout_ms",
    "checkpointing.ft_save_period", "checkpointing.save_period", "data.max_input_seq_length",
    "data.num_prompts_per_dataloader", "grpo.async_grpo.max_trajectory_age_steps",
    "grpo.batch_multiplier", "grpo.dynamic_sampling_max_gen_batches", "grpo.max_num_epochs",
    "grpo.max_rollout_turns", "grpo.max_val_samples", "grpo.val_num_generations_per_prompt",
    "policy.draft.num_layers", "policy.dtensor_cfg.clear_cache_every_n_steps",
    "policy.dtensor_cfg.context_parallel_size", "policy.dtensor_cfg.dp_replicate_size",
    "policy.dtensor_cfg.expert_parallel_size", "policy.dtensor_cfg.lora_cfg.dim",
    "policy.dtensor_cfg.lora_cfg.alpha", "policy.dtensor_cfg.tensor_parallel_size",
    "policy.dynamic_batching.logprob_mb_tokens", "policy.dynamic_batching.sequence_length_round",
    "policy.dynamic_batching.train_mb_tokens", f"{GENERATION}.colocated.resources.gpus_per_node",
    f"{GENERATION}.colocated.resources.num_nodes", f"{GENERATION}.max_new_tokens",
    f"{VLLM}.expert_parallel_size", f"{VLLM}.max_model_len",
    f"{VLLM}.pipeline_parallel_size", f"{VLLM}.tensor_parallel_size",
    "policy.generation_batch_size", "policy.logprob_chunk_size", f"{MCORE}.context_parallel_size",
    f"{MCORE}.expert_model_parallel_size", f"{MCORE}.expert_tensor_parallel_size",
    f"{MCORE}.fused_linear_logprobs_chunk_size", f"{MCORE}.num_layers_in_first_pipeline_stage",
    f"{MCORE}.num_layers_in_last_pipeline_stage", f"{MCORE}.peft.alpha", f"{MCORE}.peft.dim",
    f"{MCORE}.pipeline_model_parallel_size", f"{MCORE}.scheduler.lr_decay_iters",
    f"{MCORE}.tensor_model_parallel_size", "policy.sequence_packing.logprob_mb_tokens",
    "policy.sequence_packing.train_mb_tokens", "cluster.segment_size",
    "data_plane.global_segment_size", "data_plane.local_buffer_size",
    "data_plane.num_storage_units", "data_plane.storage_capacity",
    "grpo.reward_shaping.max_response_length", f"{MCORE}.hybridep_num_ranks_per_nvlink_domain",
    f"{MCORE}.linear_ce_fusion_chunk_size",
    f"{MCORE}.moe_hybridep_num_sms", f"{MCORE}.moe_router_group_topk",
    f"{MCORE}.moe_router_num_groups", "policy.quant_batch_size", "policy.quant_calib_size",
    "policy.quant_sequence_length",
    *(f"data.{split}.{key}" for split in SPLITS
      for key in ("num_frames", "video_target_num_patches", "video_temporal_patch_size")),
    *(f"on_policy_distillation.non_colocated_teachers.default_teacher_cfg.{key}" for key in (
        "context_parallel_size", "expert_model_parallel_size", "gpus_per_node",
        "micro_batch_size", "num_nodes", "pipeline_model_parallel_size",
        "tensor_model_parallel_size")),
)  # fmt: skip
FROM_0 = (
    "data.num_workers", "grpo.async_grpo.max_generation_failures", "grpo.seed",
    "checkpointing.ft_keep_latest_k", "checkpointing.keep_top_k",
    "loss_fn.reference_policy_kl_penalty", "logger.num_val_samples_to_print",
    f"{GENERATION}.temperature", f"{GENERATION}.val_temperature", f"{MCORE}.mtp_num_layers",
    f"{MCORE}.mtp_loss_scaling_factor", f"{MCORE}.optimizer.adam_eps", f"{MCORE}.optimizer.lr",
    f"{MCORE}.optimizer.clip_grad", f"{MCORE}.optimizer.min_lr",
    f"{MCORE}.optimizer.weight_decay", f"{MCORE}.scheduler.lr_warmup_init",
    f"{MCORE}.scheduler.lr_warmup_iters",
    "cluster.master_port_range_high", "cluster.master_port_range_low",
    "grpo.reward_shaping.overlong_buffer_length", f"{GENERATION}.port_range_high",
    f"{GENERATION}.port_range_low", f"{VLLM}.http_refit_server_port",
    f"{VLLM}.zmq_refit_server_port", f"{MCORE}.cuda_graph_warmup_steps",
    f"{MCORE}.empty_unused_memory_level", "reward_penalties.token_ids.think_close",
    "reward_penalties.token_ids.think_open",
    *(f"data.{split}.{key}" for split in SPLITS
      for key in ("min_generation_tokens", "seed", "split_validation_size")),
)  # fmt: skip
ABOVE_0 = (
    "logger.gpu_monitoring.collection_interval", "logger.gpu_monitoring.flush_interval",
    "loss_fn.kl_input_clamp_value", "loss_fn.kl_output_clamp_value",
    "policy.refit_buffer_size_gb",
)  # fmt: skip
SHARES = (
    "policy.dtensor_cfg.lora_cfg.dropout", f"{MCORE}.peft.dropout",
    f"{MCORE}.optimizer.optimizer_offload_fraction", f"{VLLM}.gpu_memory_utilization",
)  # fmt: skip
_BOUNDS: tuple[tuple[tuple[str, ...], Schema], ...] = (
    ((*POSITIVE, *FROM_1), {"minimum": 1}),
    (FROM_0, {"minimum": 0}),
    (ABOVE_0, {"exclusiveMinimum": 0}),
    (SHARES, {"minimum": 0, "maximum": 1}),
    ((f"{GENERATION}.top_p", f"{GENERATION}.val_top_p"), {"exclusiveMinimum": 0, "maximum": 1}),
)
RANGES = {key: bounds for keys, bounds in _BOUNDS for key in keys}
OF_ENVIRONMENTS: dict[str, Schema] = {
    "num_workers": {"type": "integer", "minimum": 1},
    "stop_strings": {"anyOf": [{"type": "array"}, {"type": "null"}]},
}


def misfits(
    plain: Mapping[Any, Any], schemas: Mapping[str, Schema], above: str = ""
) -> Iterator[Finding]:
    """The values that are not of their key's type or range; schemas: by path.

    A section that is not enabled is not looked into where NeMo-RL has another type for it.
    """
    for key, value in plain.items():
        path = f"{above}{key}"
        schema = schemas.get(path, {})
        if not fits(schema, value):
            yield Finding(path, f"must be {expected(schema)}, got {json_like(value)}")
            continue
        switch = schemas.get(f"{path}.enabled", {})
        always = switch.get("type") == "boolean" and "const" not in switch
        for section in sections_of(value):
            if always or section.get("enabled") is not False:
                yield from misfits(section, _within_section(schemas, path, section), f"{path}.")


def _within_section(
    schemas: Mapping[str, Schema], path: str, section: Mapping[Any, Any]
) -> Mapping[str, Schema]:
    """The schemas of a section's keys: of several kinds of section those of the one it chooses.

    Rules judge a choice that there is not, as a sampler's unknown `name`.
    """
    schema = schemas.get(path, {})
    if "variants" not in schema:
        return schemas
    chosen = schema["variants"].get(section.get(schema["chooser"]), {})
    return {f"{path}.{key}": kind for key, kind in chosen.items() if key != schema["chooser"]}


def fits(schema: Schema, value: Any) -> bool:
    """Whether a value is of the schema; unlike in NeMo-RL, a text is no number and no flag."""
    if "anyOf" in schema:
        return any(fits(one, value) for one in schema["anyOf"])
    choices = _choices(schema)
    if choices:
        return any(type(value) is type(one) and value == one for one in choices)
    kind = schema.get("type")
    if kind in NUMBERS:
        if not is_number(value) or (kind == "integer" and value % 1):
            return False
        bounds = []
        for name, (holds, _) in BOUNDS.items():
            if name in schema:
                bounds.append((holds, schema[name]))
        return all(holds(value, bound) for holds, bound in bounds)
    if kind == "array" and isinstance(value, list):
        return all(fits(schema.get("items", {}), one) for one in value)
    return kind not in KINDS or isinstance(value, KINDS[kind][0])


def expected(schema: Schema) -> str:
    """What a value must be: `a whole number from 1 or null`."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(expected, schema["anyOf"])))
    choices = _choices(schema)
    if choices:
        return " or ".join(map(json_like, choices))
    kind = schema["type"]
    if kind not in NUMBERS:
        return KINDS[kind][1]
    bounds = []
    for name, (_, said) in BOUNDS.items():
        if name in schema:
            bounds.append(said.format(schema[name]))
    return " ".join([NUMBERS[kind], *(bounds or [f"below {LARGEST:g}"])])


def json_like(value: Any) -> str:
    """A value as one would write it."""
    if isinstance(value, (bool, NoneType)):
        return json.dumps(value)
    return repr(value)


def _choices(schema: Schema) -> list[Any]:
    return schema.get("enum") or ([schema["const"]] if "const" in schema else [])


def repair(
    plain: dict[str, Any], base: Mapping[str, Any], tree: DictConfig, release: Release
) -> list[Finding]:
    """What was wrong; plain is put right by NeMo-RL's own config: base, and its omegaconf tree."""
    gone = "it must not be null. Remove the line to keep NeMo-RL's value."
    wrong = []
    for path in REQUIRED:
        if at(plain, path) is None:
            wrong.append(Finding(path, gone))
    for path in POSITIVE:
        if at(plain, path) is None and at(base, path) is not None:  # else NeMo Gym's runner sets it
            wrong.append(Finding(path, "must be a whole number from 1, got null"))
    wrong += [*misfits(plain, _judging(plain, release)), *_unlike_base(plain, base, base)]
    wrong = [*{finding.path: finding for finding in reversed(wrong)}.values()][::-1]
    for path in sorted({p.path for p in wrong}):  # a section before its keys
        value: Any = OmegaConf.select(tree, path)
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True)
        _put(plain, path, value)
    for path in POSITIVE:
        if at(plain, path) is not None:
            set_at(plain, path, int(at(plain, path)))
    return wrong


def _judging(plain: Mapping[str, Any], release: Release) -> dict[str, Schema]:
    """NeMo-RL's schema, narrowed by RANGES."""
    vllm = at(plain, f"{GENERATION}.backend") == "vllm"
    judging = dict[str, Schema]()
    for path, kind in release.schema.items():
        of_vllm = path.startswith(f"{VLLM}.")
        if of_vllm and not vllm:
            continue
        if of_vllm or path in ALSO_NULL:
            kind = {"anyOf": [kind, {"type": "null"}]}
        if path in RANGES:
            kind = narrowed(kind, RANGES[path])
        if path in POSITIVE:
            kind = narrowed(kind, {"maximum": MOST})
        judging[path] = kind
    for name in release.environments:
        judging |= {f"env.{name}.{key}": kind for key, kind in OF_ENVIRONMENTS.items()}
    return judging


def _unlike_base(
    found: Mapping[str, Any], section: Mapping[str, Any], base: Mapping[str, Any], above: str = ""
) -> Iterator[Finding]:
    """Against NeMo-RL's own values: keys without a type, and sections that are not enabled."""
    for key, written in section.items():
        value = found.get(key)
        path = f"{above}{key}"
        like = _referred(written, above, base)
        if isinstance(like, dict) and isinstance(value, dict):
            yield from _unlike_base(value, like, base, f"{path}.")
            continue
        wrong = ""
        if value is not None and path not in LISTS:
            wrong = _unlike(like, value)
        if wrong:
            yield Finding(path, f"must be {wrong}, got {value!r}")


def _unlike(like: Any, value: Any) -> str | None:
    """What a value must be, where NeMo-RL's own is of another kind."""
    if isinstance(like, dict):
        return "a section of key: value pairs"
    if isinstance(like, bool):
        if isinstance(value, bool):
            return None
        return "true or false"
    if isinstance(like, (int, float)):
        if is_number(value):
            return None
        return "a number below 1e+15"
    if isinstance(like, str) and isinstance(value, (list, dict)):
        return "one value"
    return None


def _referred(value: Any, above: str, base: Mapping[str, Any]) -> Any:
    """What an interpolation as written refers to; a number of what it computes."""
    while isinstance(value, str):
        match = REFERENCE.fullmatch(value)
        if not match:
            break
        path = match[1]
        if path.startswith("."):
            path = above + path[1:]
        value = at(base, path)
    if isinstance(value, str) and COMPUTED.match(value):
        return 0
    return value


def _put(plain: Any, path: str, value: Any) -> None:
    """Set a key's value in place, in each section of a list of them."""
    key, _, below = path.partition(".")
    for section in plain if isinstance(plain, list) else [plain]:
        if not below:
            section[key] = value
        elif isinstance(section.setdefault(key, {}), (dict, list)):
            _put(section[key], below, value)
