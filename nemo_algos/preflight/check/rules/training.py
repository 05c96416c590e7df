"""The training backends' own options: optimizer, schedule, precision, LoRA, log-probs."""

from collections.abc import Iterator

from nemo_algos.config import Finding, at
from nemo_algos.preflight.check.layout import DTENSOR, MEGATRON
from nemo_algos.preflight.check.rule import Preflight, error, warning

OPTIMIZER = f"{MEGATRON}.optimizer"
SCHEDULER = f"{MEGATRON}.scheduler"
LORA = f"{DTENSOR}.lora_cfg"
PEFT = f"{MEGATRON}.peft"
SECOND_VERSION = (
    "automodel_kwargs",
    "defer_fsdp_grad_sync",
    "expert_parallel_size",
    "moe_parallelizer",
)
FUSED = f"{MEGATRON}.use_fused_linear_logprobs"


def fused_logprobs(run: Preflight) -> Iterator[Finding]:
    """Fused log-probs see neither packed sequences nor filtered logits."""
    if not (run.megatron and run[FUSED]):
        return
    overlap = f"{MEGATRON}.distributed_data_parallel_config.overlap_param_gather"
    wrong = {
        "policy.sequence_packing.enabled": run["policy.sequence_packing.enabled"],
        overlap: run[overlap],
        f"{MEGATRON}.context_parallel_size": run.layout.context > 1,
        "policy.generation.top_k": run["policy.generation.top_k"] not in (None, -1),
        "policy.generation.top_p": run["policy.generation.top_p"] not in (None, 1),
    }
    for path in [path for path, found in wrong.items() if found]:
        yield error(path, "use_fused_linear_logprobs excludes it. Turn off one of the two.")
    if run.layout.tensor > 1 and not run.layout.sequence_parallel:
        yield error(
            f"{MEGATRON}.sequence_parallel",
            "use_fused_linear_logprobs needs it with tensor parallelism, or every update fails. "
            "Set it to true.",
        )


def logprob_chunks(run: Preflight) -> Iterator[Finding]:
    """Megatron cuts logits into chunks before they are FP32."""
    path = f"{MEGATRON}.defer_fp32_logits"
    if run.megatron and run["policy.logprob_chunk_size"] and not run[path]:
        yield error(path, "`policy.logprob_chunk_size` needs it. Set it to true.")


def optimizer_precision(run: Preflight) -> Iterator[Finding]:
    """Megatron's optimizer knows the precision of training."""
    path = f"{OPTIMIZER}.bf16"
    precision = run["policy.precision"]
    aware = run[f"{OPTIMIZER}.use_precision_aware_optimizer"]
    if run.megatron and precision == "bfloat16" and aware and not run[path]:
        yield error(
            path,
            "with `policy.precision: bfloat16`, the precision-aware optimizer needs it. Set it to "
            "true.",
        )
    if run.megatron and precision == "float32" and run[path]:
        yield error(path, "it contradicts `policy.precision: float32`. Set it to false.")


def known_precision(run: Preflight) -> Iterator[Finding]:
    """A name that the workers know."""
    known = ("bfloat16", "float16", "float32")
    if run["policy.precision"] not in known:
        found = run["policy.precision"]
        yield error("policy.precision", f"must be one of {', '.join(known)}, got {found!r}")


def optimizer_offload(run: Preflight) -> Iterator[Finding]:
    """Megatron offloads a share of a distributed optimizer."""
    share = f"{OPTIMIZER}.optimizer_offload_fraction"
    path = f"{OPTIMIZER}.optimizer_cpu_offload"
    if run.megatron and run[path] and not 0 < (run[share] or 0) <= 1:
        yield error(
            share,
            "optimizer_cpu_offload moves this share of the optimizer, so it must be above 0 and "
            "at most 1. Set e.g. 1.0.",
        )


def learning_rates(run: Preflight) -> Iterator[Finding]:
    """Megatron's schedule goes from lr_warmup_init up to lr and down to min_lr."""
    peak = run[f"{OPTIMIZER}.lr"]
    for path in (f"{OPTIMIZER}.min_lr", f"{SCHEDULER}.lr_warmup_init"):
        if run.megatron and peak is not None and (run[path] or 0) > peak:
            yield error(
                path,
                f"{run[path]:g} exceeds the learning rate (`{OPTIMIZER}.lr: {peak:g}`). Set it to "
                f"at most {peak:g}.",
            )


def warmup(run: Preflight) -> Iterator[Finding]:
    """Warm-up ends before the decay and before the run."""
    path = f"{SCHEDULER}.lr_warmup_iters"
    decay = run[f"{SCHEDULER}.lr_decay_iters"]
    steps = run[path] or 0
    if run.megatron and decay is not None and steps >= decay:
        yield error(path, f"{steps} must be below lr_decay_iters: {decay}. Change one of them.")
    elif run.megatron and steps >= run["grpo.max_num_steps"]:
        yield warning(
            path,
            f"the run ends before its warm-up of {steps} steps does. Set it below "
            f"{run['grpo.max_num_steps']}.",
        )


def learning_rate(run: Preflight) -> Iterator[Finding]:
    """Of the size that trains a language model; LoRA takes more."""
    path = peak_rate(run)
    adapters = run[f"{LORA}.enabled"] or run[f"{PEFT}.enabled"]
    high = 1e-3 if adapters else 1e-4
    if run[path] is not None and not 1e-8 <= run[path] <= high:
        yield warning(
            path,
            f"{run[path]:g} is outside the usual 1e-08 to {high:g}. The papers use 1e-06 to "
            "1e-05. Check the digits.",
        )


def peak_rate(run: Preflight) -> str:
    """The path of the learning rate."""
    return f"{OPTIMIZER}.lr" if run.megatron else "policy.optimizer.kwargs.lr"


def first_version(run: Preflight) -> Iterator[Finding]:
    """A missing `_v2` is false; it decides the format of checkpoints under Megatron too."""
    path = f"{DTENSOR}._v2"
    if run[path]:
        return
    if run["checkpointing.enabled"] and run["checkpointing.model_save_format"]:
        yield error(
            "checkpointing.model_save_format",
            f"the first save would fail without `{path}: true`. Set that, or set this to null.",
        )
    if run.megatron:
        return
    if run[f"{LORA}.enabled"]:
        yield error(path, "LoRA needs it. Set it to true.")
    if (run[f"{DTENSOR}.dp_replicate_size"] or 1) > 1:
        yield error(path, "dp_replicate_size needs it. Set it to true.")
    for key in [f"{DTENSOR}.{name}" for name in SECOND_VERSION]:
        if at(run.written, key):
            yield warning(key, f"it is only read with `{path}: true`. Set that, or remove it.")
