"""The training backends' own options: optimizer, schedule, precision, LoRA, log-probs."""

from collections.abc import Iterator

from nemo_algos.findings import Finding, at
from nemo_algos.preflight.check.layout import DTENSOR, MEGATRON
from nemo_algos.preflight.check.rule import Preflight, error, errors, warning

OPTIMIZER = f"{MEGATRON}.optimizer"
LORA = f"{DTENSOR}.lora_cfg"

SECOND_VERSION = (
    "automodel_kwargs",
    "defer_fsdp_grad_sync",
    "expert_parallel_size",
    "moe_parallelizer",
)
FUSED = f"{MEGATRON}.use_fused_linear_logprobs"


def fused_logprobs(run: Preflight) -> Iterator[Finding]:
    """Fused log-probs see neither packed sequences nor filtered logits; chunks want late FP32."""
    if not run.megatron:
        return
    overlap = f"{MEGATRON}.distributed_data_parallel_config.overlap_param_gather"
    excluded = {
        "policy.sequence_packing.enabled": run["policy.sequence_packing.enabled"],
        overlap: run[overlap],
        f"{MEGATRON}.context_parallel_size": run.layout.context > 1,
        "policy.generation.top_k": run["policy.generation.top_k"] not in (None, -1),
        "policy.generation.top_p": run["policy.generation.top_p"] not in (None, 1),
    }
    for path, found in excluded.items():
        if run[FUSED] and found:
            yield error(path, "use_fused_linear_logprobs excludes it. Turn off one of the two.")
    yield from errors(
        (
            run[FUSED] and run.layout.tensor > 1 and not run.layout.sequence_parallel,
            f"{MEGATRON}.sequence_parallel",
            "use_fused_linear_logprobs needs it with tensor parallelism, or every update fails. "
            "Set it to true.",
        ),
        (
            run["policy.logprob_chunk_size"] and not run[f"{MEGATRON}.defer_fp32_logits"],
            f"{MEGATRON}.defer_fp32_logits",
            "`policy.logprob_chunk_size` needs it. Set it to true.",
        ),
    )


def optimizer_precision(run: Preflight) -> Iterator[Finding]:
    """Megatron's optimizer knows the precision of training, and the share that it offloads."""
    precision = run["policy.precision"]
    bf16 = run[f"{OPTIMIZER}.bf16"]
    share = run[f"{OPTIMIZER}.optimizer_offload_fraction"] or 0
    yield from errors(
        (
            run.megatron
            and precision == "bfloat16"
            and run[f"{OPTIMIZER}.use_precision_aware_optimizer"]
            and not bf16,
            f"{OPTIMIZER}.bf16",
            "with `policy.precision: bfloat16`, the precision-aware optimizer needs it. Set it to "
            "true.",
        ),
        (
            run.megatron and precision == "float32" and bf16,
            f"{OPTIMIZER}.bf16",
            "it contradicts `policy.precision: float32`. Set it to false.",
        ),
        (
            run.megatron and run[f"{OPTIMIZER}.optimizer_cpu_offload"] and not 0 < share <= 1,
            f"{OPTIMIZER}.optimizer_offload_fraction",
            "optimizer_cpu_offload moves this share of the optimizer, so it must be above 0 and "
            "at most 1. Set e.g. 1.0.",
        ),
    )


def first_version(run: Preflight) -> Iterator[Finding]:
    """A missing `_v2` is false; it decides the format of checkpoints under Megatron too."""
    path = f"{DTENSOR}._v2"
    if run[path]:
        return
    saves = run["checkpointing.enabled"] and run["checkpointing.model_save_format"]
    yield from errors(
        (
            saves,
            "checkpointing.model_save_format",
            f"the first save would fail without `{path}: true`. Set that, or set this to null.",
        ),
        (
            not run.megatron and run[f"{LORA}.enabled"],
            path,
            "LoRA needs it. Set it to true.",
        ),
        (
            not run.megatron and (run[f"{DTENSOR}.dp_replicate_size"] or 1) > 1,
            path,
            "dp_replicate_size needs it. Set it to true.",
        ),
    )
    for name in SECOND_VERSION:
        key = f"{DTENSOR}.{name}"
        if at(run.written, key) and not run.megatron:
            yield warning(key, f"it is only read with `{path}: true`. Set that, or remove it.")
