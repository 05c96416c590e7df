"""FP8 keys that would be ignored in silence, or refused only once Ray and the models are up.

Megatron checks neither format nor recipe; NeMo-RL asserts some of the rest in its workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from typing import Any

from nemo_algos.config import Finding, at, did_you_mean

MEGATRON = "policy.megatron_cfg"
FP8 = f"{MEGATRON}.fp8_cfg"
VLLM = "policy.generation.vllm_cfg"
DIVISOR = "policy.make_sequence_length_divisible_by"
CORRECTION = "loss_fn.use_importance_sampling_correction"

# Megatron's `custom` needs a quantizer for which NeMo-RL has no key
VALID = {"fp8": ("e4m3", "hybrid"), "fp8_recipe": ("blockwise", "delayed", "mxfp8", "tensorwise")}
POW2 = ("pow2_weight_scaling_factors", "pow2_activation_scaling_factors")
# what NeMo-RL asserts of an FP8 KV cache
KV_CACHE: tuple[tuple[str, Any], ...] = (
    (f"{VLLM}.precision", "fp8"),
    (f"{VLLM}.async_engine", False),
    ("policy.dtensor_cfg.enabled", False),
    (f"{MEGATRON}.pipeline_model_parallel_size", 1),
)


def conflicts(plain: Mapping[str, Any]) -> list[Finding]:
    """Every FP8 key of NeMo-RL's config that cannot do what it says."""
    training = _of_training(plain) if at(plain, f"{FP8}.enabled") else []
    rollouts = _of_rollouts(plain) if at(plain, "policy.generation.backend") == "vllm" else []
    return training + rollouts


def _of_training(plain: Mapping[str, Any]) -> list[Finding]:
    problems = [
        Finding(f"{FP8}.{key}", f"no such value: {found}{did_you_mean(str(found), valid)}")
        for key, valid in VALID.items()
        if (found := at(plain, f"{FP8}.{key}")) not in valid
    ]
    if not at(plain, f"{MEGATRON}.enabled"):
        why = "DTensor workers train without FP8: set policy.megatron_cfg.enabled: true and "
        problems.append(Finding(f"{FP8}.enabled", f"{why}policy.dtensor_cfg.enabled: false"))
    if at(plain, f"{MEGATRON}.transformer_impl") == "local":
        why = "Megatron's local layers ignore FP8: set transformer_engine"
        problems.append(Finding(f"{MEGATRON}.transformer_impl", why))
    needed = _alignment(plain)
    if not at(plain, "policy.sequence_packing.enabled") and at(plain, DIVISOR) % needed:
        why = "NeMo-RL pads to FP8's tiles only when it packs: set policy.sequence_packing.enabled"
        problems.append(Finding(DIVISOR, f"{why}: true, or a multiple of {needed} here"))
    return problems


def _alignment(plain: Mapping[str, Any]) -> int:
    """Tokens per sequence that FP8's GEMMs divide: 8 on each rank going forward and 16 in the
    weights' gradient; mxfp8 quantizes blocks of 32 on each rank."""
    split = at(plain, f"{MEGATRON}.sequence_parallel")
    ranks = at(plain, f"{MEGATRON}.tensor_model_parallel_size") if split else 1
    return 32 * ranks if at(plain, f"{FP8}.fp8_recipe") == "mxfp8" else lcm(16, 8 * ranks)


def _of_rollouts(plain: Mapping[str, Any]) -> list[Finding]:
    fp8, mx = at(plain, f"{VLLM}.precision") == "fp8", at(plain, f"{VLLM}.is_mx")
    problems = []
    if fp8 and not at(plain, CORRECTION):
        why = "FP8 rollouts are not drawn from the policy that is trained: set it to true"
        problems.append(Finding(CORRECTION, why))
    if mx and not fp8:
        why = f"is read only with FP8 rollouts: set {VLLM}.precision: fp8"
        problems.append(Finding(f"{VLLM}.is_mx", why))
    scales = [f"{VLLM}.{key}" for key in POW2] if mx else []
    problems += [
        Finding(path, "mxfp8 scales are powers of 2: remove it")
        for path in scales
        if at(plain, path) is False
    ]
    if str(at(plain, f"{VLLM}.kv_cache_dtype")).startswith("fp8"):
        problems += [
            Finding(path, f"must be {value} with an FP8 KV cache")
            for path, value in KV_CACHE
            if at(plain, path) != value
        ]
    return problems
