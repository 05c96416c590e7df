"""Values of a wrong type or sign, put right in place so that the rules can judge the rest."""

import re
from collections.abc import Iterator, Mapping, Set
from types import NoneType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_algos.config import Finding, at, resolve, set_at
from nemo_algos.preflight.check.controller_schema import type_findings

REFERENCE, COMPUTED = re.compile(r"\$\{([\w.]+)\}"), re.compile(r"\$\{(add|mul|div|max):")
REQUIRED = ("checkpointing", "cluster", "data", "grpo", "logger", "loss_fn", "policy")
REQUIRED += ("data.train", "policy.dynamic_batching", "policy.generation", "policy.model_name")
REQUIRED += ("policy.sequence_packing", "policy.tokenizer")
LISTS = ("data.train", "data.validation")  # a dataset, or a list of them
POSITIVE = (
    "cluster.gpus_per_node", "cluster.num_nodes", "grpo.max_num_steps",
    "grpo.num_generations_per_prompt", "grpo.num_prompts_per_step", "grpo.val_batch_size",
    "policy.logprob_batch_size", "policy.make_sequence_length_divisible_by",
    "policy.max_total_sequence_length", "policy.train_global_batch_size",
    "policy.train_micro_batch_size",
)  # fmt: skip
MOST = 10**9  # of what is counted
LARGEST = 1e15  # of any number
KIND = f"a number below {LARGEST:g}"

# null or absent in NeMo-RL's own configs, so that their type does not show there
FLAGS = (
    "data_plane.enabled", "env.should_use_nemo_gym", "grpo.async_grpo.enabled",
    "grpo.single_controller.enabled", "grpo.skip_reference_policy_logprobs_calculation",
    "on_policy_distillation.enabled", "policy.dtensor_cfg.lora_cfg.enabled",
    "policy.generation.mcore_generation_config.async_engine",
    "policy.generation.use_async_rollouts", "policy.generation.vllm_cfg.is_mx",
    "policy.megatron_cfg.force_reconvert_from_hf", "policy.megatron_cfg.fp8_cfg.enabled",
    "policy.megatron_cfg.mtp_detach_heads", "policy.megatron_cfg.peft.enabled",
    "policy.megatron_cfg.use_fused_linear_logprobs",
    "policy.megatron_cfg.use_linear_ce_fusion_loss", "policy.reward_model_cfg.enabled",
    "policy.router_replay.enabled",
)  # fmt: skip
NUMBERS = (
    "data.max_input_seq_length", "data.num_prompts_per_dataloader", "grpo.max_val_samples",
    "grpo.stop_at_validation_threshold", "grpo.val_num_generations_per_prompt",
    "loss_fn.truncated_importance_sampling_ratio",
    "loss_fn.truncated_importance_sampling_ratio_min", "policy.dtensor_cfg.dp_replicate_size",
    "policy.dtensor_cfg.expert_parallel_size",
    "policy.generation.colocated.resources.gpus_per_node",
    "policy.generation.colocated.resources.num_nodes", "policy.generation.top_k",
    "policy.logprob_chunk_size", "policy.megatron_cfg.mtp_loss_scaling_factor",
    "policy.megatron_cfg.mtp_num_layers", "policy.megatron_cfg.num_layers_in_first_pipeline_stage",
    "policy.megatron_cfg.num_layers_in_last_pipeline_stage",
    "policy.megatron_cfg.scheduler.lr_decay_iters", "policy.optimizer.kwargs.lr",
)  # fmt: skip


def repair(plain: dict[str, Any], base: Mapping[str, Any], tree: DictConfig) -> list[Finding]:
    """What was wrong; plain is put right by NeMo-RL's own config: base, and its omegaconf tree."""
    unset = {path for path in POSITIVE if at(base, path) is None}  # NeMo Gym's runner sets it
    wrong = [*_types(plain, base, base), *_signs(plain, unset)]
    told = {finding.path for finding in wrong}
    wrong += [finding for finding in type_findings(plain) if finding.path not in told]
    for path in sorted({p.path for p in wrong}):  # a section before its keys
        value = _referred(at(base, path), f"{path.rpartition('.')[0]}.", base)
        if isinstance(value, dict):
            value = resolve(OmegaConf.select(tree, path))
        set_at(plain, path, value)
    for path in POSITIVE:
        if at(plain, path) is not None:
            set_at(plain, path, int(at(plain, path)))
    return wrong


def _types(
    found: Mapping[str, Any], section: Mapping[str, Any], base: Mapping[str, Any], above: str = ""
) -> Iterator[Finding]:
    for key, like in section.items():
        value, path, like = found.get(key), f"{above}{key}", _referred(like, above, base)
        if isinstance(like, dict) and isinstance(value, dict):
            yield from _types(value, like, base, f"{path}.")
        elif value is not None and path not in LISTS and (wrong := _unlike(like, value)):
            yield Finding(path, f"must be {wrong}, got {value!r}")


def _unlike(like: Any, value: Any) -> str | None:
    """What a value must be, where NeMo-RL's own is of another kind."""
    if isinstance(like, dict):
        return "a section of key: value pairs"
    if isinstance(like, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(like, (int, float)):
        return None if _number(value) else KIND
    return "one value" if isinstance(like, str) and isinstance(value, (list, dict)) else None


def _referred(value: Any, above: str, base: Mapping[str, Any]) -> Any:
    """What an interpolation as written refers to; a number of what it computes."""
    while isinstance(value, str) and (match := REFERENCE.fullmatch(value)):
        path = match[1]
        value = at(base, above + path[1:] if path.startswith(".") else path)
    return 0 if isinstance(value, str) and COMPUTED.match(value) else value


def _signs(plain: Mapping[str, Any], unset: Set[str]) -> Iterator[Finding]:
    for path in REQUIRED:
        if at(plain, path) is None:
            yield Finding(path, "it must not be null. Remove the line to keep NeMo-RL's value.")
    for path in FLAGS:
        if not isinstance(at(plain, path), (bool, NoneType)):
            yield Finding(path, f"must be true or false, got {at(plain, path)!r}")
    for path in NUMBERS:
        value = at(plain, path)
        if value is not None and not _number(value):
            yield Finding(path, f"must be {KIND}, got {value!r}")
    for path in POSITIVE:
        value = at(plain, path)
        if value is None and path in unset:
            continue
        if value is None or (_number(value) and (value < 1 or value % 1)):
            yield Finding(path, f"must be a whole number from 1, got {value!r}")
        elif _number(value) and value > MOST:
            yield Finding(path, f"must be at most {MOST:,}, got {value!r}")


def _number(value: Any) -> bool:
    """Neither a flag, nor beyond all that occurs, nor infinite, nor no number."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return known and -LARGEST < value < LARGEST
