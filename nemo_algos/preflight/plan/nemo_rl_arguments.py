"""NeMo-RL's config as a `Training` on a kind of GPU, and what of it training does not decide.

GPUs by name have the bytes that the driver shows, FLOP/s and bandwidth of the data sheets.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from nemo_algos.preflight.check.decoder import Model
from nemo_algos.preflight.check.layout import DTENSOR, MEGATRON, Run
from nemo_algos.preflight.plan.workload import (
    Kernels,
    Parallel,
    Recompute,
    States,
    Training,
    network,
)

OUTSIDE = 4e9  # bytes: CUDA contexts, NCCL, fragmentation; an assumption
LORA = (f"{MEGATRON}.peft", f"{DTENSOR}.lora_cfg")


class GPU(NamedTuple):
    """Bytes of memory, dense BF16 FLOP/s, bytes per second of memory; bytes of its node's host."""

    name: str
    memory: float
    flops: float
    bandwidth: float
    host: float = 2e12


SHEETS = (
    GPU("A100", 85e9, 312e12, 2.0e12),
    GPU("H100", 85e9, 989e12, 3.35e12),
    GPU("H200", 150e9, 989e12, 4.8e12),
    GPU("B200", 191e9, 2250e12, 7.7e12),
    GPU("GB200", 198e9, 2450e12, 8.0e12, host=0.96e12),
)
GPUS = {gpu.name: gpu for gpu in SHEETS}
SCORED = "policy.logprob_batch_size"
SCORED_TOKENS = "logprob_mb_tokens"


@dataclass(frozen=True)
class Setup(Run):
    """A run of a known model on a kind of GPU."""

    model: Model
    gpu: GPU

    def backend(self, key: str) -> Any:
        """A key of the training backend's section."""
        return self[f"{self.section}.{key}"]


def micro_batch_tokens(run: Setup) -> float:
    """Of a micro-batch in training, on one context-parallel rank."""
    longest = run["policy.max_total_sequence_length"]
    tokens = run["policy.train_micro_batch_size"] * longest
    if run.packing:
        tokens = run[f"policy.{run.packing}.train_mb_tokens"] or longest
    return tokens / run.layout.context


def scored_sequences(run: Setup) -> float:
    """Of a micro-batch in the pass for log-probs."""
    if not run.packing:
        return run[SCORED]
    longest = run["policy.max_total_sequence_length"]
    return (run[f"policy.{run.packing}.{SCORED_TOKENS}"] or longest) / longest


def training(run: Setup) -> Training:
    """The training of a resolved config; sequences as long as they may be."""
    p = run.layout
    longest = run["policy.max_total_sequence_length"]
    sequences = micro_batch_tokens(run) * p.context / longest
    each = run["policy.train_global_batch_size"] / max(1, p.data)
    stages = 2 * p.pipeline  # more micro-batches hold no more than these
    fused = run.backend("bias_activation_fusion") is not False
    # float32 logits, their softmax and their gradient; in chunks, the first and last
    chunked = run["policy.logprob_chunk_size"]
    logits = 2 if chunked and run.backend("defer_fp32_logits") else 4
    most = logits + 4
    if not chunked:
        most += 4
    if run.backend("use_fused_linear_logprobs"):
        most = 0
    return Training(
        network=network(run.model, _stages(run), fused),
        parallel=Parallel(
            gpus=p.train_gpus,
            tensor=p.tensor,
            pipeline=p.pipeline,
            context=p.context,
            expert=p.expert,
            expert_tensor=p.expert_tensor,
            sequence=p.sequence_parallel and p.tensor > 1,
        ),
        sequence=longest,
        micro_batch=sequences,
        micro_batches=max(1, min(stages, round(each / sequences))),
        states=_states(run),
        kernels=Kernels(
            attention="flash",
            linear_input=1 if run.backend("fp8_cfg.enabled") else 2,
            logits=(most, 0),
            workspace=OUTSIDE,
        ),
        recompute=_recompute(run),
    )


def _stages(run: Setup) -> tuple[tuple[str, ...], ...]:
    """Layers spread evenly but for what the config gives the first and last stage."""
    layers = run.model.layers
    pp = run.layout.pipeline
    if pp == 1:
        return (layers,)
    given = []
    for end in ("first", "last"):
        given.append(run.backend(f"num_layers_in_{end}_pipeline_stage"))
    fixed = [x for x in given if x]
    even = -(-(len(layers) - sum(fixed)) // max(1, pp - len(fixed)))
    counts = [given[0] or even, *[even] * (pp - 2), given[1] or even]
    starts = [sum(counts[:i]) for i in range(pp)]
    return tuple(layers[s : s + n] for s, n in zip(starts, counts, strict=True))


def trainable(run: Setup) -> float:
    """The share of the parameters that has gradients: 1, or LoRA's."""
    for path in LORA:
        if run[f"{path}.enabled"]:
            m = run.model
            rank = run[f"{path}.dim"] or 8
            ends = 4 * 2 * m.hidden_size + 3 * (m.hidden_size + m.intermediate_size)
            return rank * ends * len(m.layers) / m.parameters
    return 1.0


def _states(run: Setup) -> States:
    share = trainable(run)
    if run.layout.backend == "dtensor":  # FSDP: float32 weights, gathered by layer in BF16
        host = bool(run.backend("cpu_offload"))
        return States(
            weight=4,
            main=0,
            fully=True,
            trained=share,
            on_host=float(host),
            host_bytes=8,
            weights_on_host=host,
        )
    fp32 = run.backend("distributed_data_parallel_config.grad_reduce_in_fp32")
    aware = run.backend("optimizer.use_precision_aware_optimizer")
    offloaded = run.backend("optimizer.optimizer_offload_fraction") or 0.0
    enabled = bool(run.backend("fp8_cfg.enabled"))
    replaces = bool(run.backend("fp8_cfg.fp8_param"))
    return States(
        linear_copies=2 * enabled - 2 * (enabled and replaces),  # along rows and columns
        gradient=4 if fp32 else 2,
        main=2 if aware else 4,  # the half that BF16 weights lack
        main_gradient=0 if fp32 or aware else 4,
        sharded=run.backend("optimizer.use_distributed_optimizer") is not False,
        trained=share,
        on_host=offloaded if run.backend("optimizer.optimizer_cpu_offload") else 0.0,
    )


def _recompute(run: Setup) -> Recompute:
    moves = run.backend("fine_grained_activation_offloading")
    offloaded = frozenset((run.backend("offload_modules") or ()) if moves else ())
    if not run.backend("activation_checkpointing"):
        return Recompute(offloaded=offloaded)
    if run.backend("recompute_granularity") == "selective":
        modules = frozenset(run.backend("recompute_modules") or ["core_attn"])
        return Recompute(modules=modules, offloaded=offloaded)
    return Recompute(layers=len(run.model.layers), offloaded=offloaded)
