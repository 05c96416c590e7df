"""Values of a wrong type or sign. They are put right in place, so that the other rules can judge
the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf

from nemo_algos.config import Finding, at, resolved

REFERENCE, COMPUTED = re.compile(r"\$\{([\w.]+)\}"), re.compile(r"\$\{(add|mul|div|max):")
REQUIRED = ("checkpointing", "cluster", "data", "grpo", "loss_fn", "policy", "policy.generation")
LISTS = ("data.train", "data.validation")  # a dataset, or a list of them
POSITIVE = (
    "cluster.gpus_per_node",
    "cluster.num_nodes",
    "grpo.max_num_steps",
    "grpo.num_generations_per_prompt",
    "grpo.num_prompts_per_step",
    "grpo.val_batch_size",
    "policy.logprob_batch_size",
    "policy.make_sequence_length_divisible_by",
    "policy.max_total_sequence_length",
    "policy.train_global_batch_size",
    "policy.train_micro_batch_size",
)

# null or absent in NeMo-RL's own configs, so that their type does not show there
NUMBERS = (
    "data.num_prompts_per_dataloader",
    "loss_fn.truncated_importance_sampling_ratio",
    "loss_fn.truncated_importance_sampling_ratio_min",
    "policy.dtensor_cfg.dp_replicate_size",
    "policy.dtensor_cfg.expert_parallel_size",
    "policy.generation.colocated.resources.gpus_per_node",
    "policy.generation.colocated.resources.num_nodes",
    "policy.generation.top_k",
    "policy.megatron_cfg.num_layers_in_first_pipeline_stage",
    "policy.megatron_cfg.num_layers_in_last_pipeline_stage",
)


def repaired(plain: dict[str, Any], base: Mapping[str, Any]) -> list[Finding]:
    """What was wrong. base: NeMo-RL's own config, interpolations as written."""
    problems = [*_types(plain, base, base), *_missing(plain), *_signs(plain)]
    for path in sorted({p.path for p in problems}):  # a section before its keys
        above, _, key = path.rpartition(".")
        value = _referred(at(base, path), f"{above}.", base)
        if isinstance(value, Mapping):
            value = resolved(OmegaConf.select(OmegaConf.create(dict(base)), path))
        (at(plain, above) if above else plain)[key] = value
    return problems


def _types(
    found: Mapping[str, Any], section: Mapping[str, Any], base: Mapping[str, Any], above: str = ""
) -> Iterator[Finding]:
    for key, like in section.items():
        value, path, like = found.get(key), f"{above}{key}", _referred(like, above, base)
        if isinstance(like, Mapping) and isinstance(value, Mapping):
            yield from _types(value, like, base, f"{path}.")
        elif value is not None and path not in LISTS and (wrong := _unlike(like, value)):
            yield Finding(path, f"must be {wrong}, got {value!r}")


def _unlike(like: Any, value: Any) -> str | None:
    """What a value must be, where NeMo-RL's own is of another kind."""
    if isinstance(like, Mapping):
        return "a section of key: value pairs"
    if isinstance(like, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(like, (int, float)):
        return None if _number(value) else "a number"
    return "one value" if isinstance(like, str) and isinstance(value, (list, Mapping)) else None


def _referred(value: Any, above: str, base: Mapping[str, Any]) -> Any:
    """What an interpolation as written refers to; a number of what it computes."""
    while isinstance(value, str) and (match := REFERENCE.fullmatch(value)):
        path = match[1]
        value = at(base, above + path[1:] if path.startswith(".") else path)
    return 0 if isinstance(value, str) and COMPUTED.match(value) else value


def _missing(plain: Mapping[str, Any]) -> Iterator[Finding]:
    for path in REQUIRED:
        if at(plain, path) is None:
            yield Finding(path, "must not be null: remove the line")


def _signs(plain: Mapping[str, Any]) -> Iterator[Finding]:
    for path in NUMBERS:
        value = at(plain, path)
        if value is not None and not _number(value):
            yield Finding(path, f"must be a number, got {value!r}")
    for path in POSITIVE:
        value = at(plain, path)
        if value is None or (_number(value) and (value < 1 or value % 1)):
            yield Finding(path, f"must be a whole number from 1, got {value!r}")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
