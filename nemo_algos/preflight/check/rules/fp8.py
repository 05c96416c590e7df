"""FP8 keys that would be ignored in silence, or refused only once Ray and the models are up."""

from collections.abc import Iterator
from math import lcm
from typing import Any

from nemo_algos.findings import Finding, did_you_mean
from nemo_algos.preflight.check.layout import MEGATRON, VLLM
from nemo_algos.preflight.check.rule import CORRECTION, Preflight

FP8 = f"{MEGATRON}.fp8_cfg"
DIVISOR = "policy.make_sequence_length_divisible_by"

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


def fp8_training(run: Preflight) -> Iterator[Finding]:
    """FP8 training has a recipe that Megatron knows, its layers, and whole tiles of tokens."""
    if not run[f"{FP8}.enabled"]:
        return
    for key, valid in VALID.items():
        found = run[f"{FP8}.{key}"]
        if found not in valid:
            near = did_you_mean(str(found), valid)
            yield Finding(f"{FP8}.{key}", f"unknown value: {found}{near}")
    if not run[f"{MEGATRON}.enabled"]:
        yield Finding(
            f"{FP8}.enabled",
            "DTensor workers cannot train in FP8. Set `policy.megatron_cfg.enabled: true` and "
            "`policy.dtensor_cfg.enabled: false`.",
        )
    if run[f"{FP8}.fp8_param"]:
        said = "weights kept in FP8 may make log-probs NaN (NVIDIA-NeMo/RL#1164). Set it to false."
        yield Finding(f"{FP8}.fp8_param", said, "warning")
    if run[f"{MEGATRON}.transformer_impl"] == "local":
        yield Finding(
            f"{MEGATRON}.transformer_impl",
            "Megatron's local layers ignore FP8. Set it to transformer_engine.",
        )
    split = run[f"{MEGATRON}.sequence_parallel"]
    ranks = run[f"{MEGATRON}.tensor_model_parallel_size"] if split else 1
    needed = 32 * ranks if run[f"{FP8}.fp8_recipe"] == "mxfp8" else lcm(16, 8 * ranks)
    found = run[DIVISOR]
    if not run["policy.sequence_packing.enabled"] and found % needed:
        more = -(-found // needed) * needed
        yield Finding(
            DIVISOR,
            "NeMo-RL pads sequences to FP8's tiles only when it packs them. Set it to a multiple "
            f"of {needed}, such as {more}, or set `policy.sequence_packing.enabled: true`.",
        )


def fp8_rollouts(run: Preflight) -> Iterator[Finding]:
    """FP8 rollouts are corrected for, in scales and a cache that vLLM has."""
    if not run.vllm:
        return
    fp8 = run[f"{VLLM}.precision"] == "fp8"
    mx = run[f"{VLLM}.is_mx"]
    if fp8 and not run.corrected:
        yield Finding(
            CORRECTION,
            "FP8 rollouts are not sampled from the policy that is trained. Set it to true, or set "
            "a `rollout_correction.preset`.",
        )
    if mx and not fp8:
        yield Finding(
            f"{VLLM}.is_mx", f"it only applies to FP8 rollouts. Set `{VLLM}.precision: fp8`."
        )
    for key in POW2:
        path = f"{VLLM}.{key}"
        if mx and run[path] is False:
            yield Finding(path, "mxfp8 scales are always powers of 2. Remove it.")
    if str(run[f"{VLLM}.kv_cache_dtype"]).startswith("fp8"):
        for path, value in KV_CACHE:
            if run[path] != value:
                yield Finding(path, f"must be {value} with an FP8 KV cache, got {run[path]}")
