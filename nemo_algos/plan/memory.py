"""Bytes on one GPU, by component, while NeMo-RL trains and while it generates.

Sources: [M] Megatron-Core's table of its distributed optimizer: 2 + (2 or 4) + 12 / d bytes a
parameter; [K] Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
Models", eq. 2 and 4, whose parts are here of a model without dropout, with grouped queries, a gated
MLP and flash attention. docs/plan.md says what is left out.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from nemo_algos.preflight.layout import DTENSOR, MEGATRON, VLLM, Run
from nemo_algos.preflight.models import Model

ADAM = 12  # float32 master weight and two moments
WORKSPACE = 6e9  # CUDA contexts, NCCL, the sleeping engine, fragmentation
ENGINE_WORKSPACE = 4e9  # vLLM's activations and CUDA graphs
LORA = (f"{MEGATRON}.peft", f"{DTENSOR}.lora_cfg")


class GPU(NamedTuple):
    """Of its data sheet: bytes of memory, dense BF16 FLOP/s, bytes per second of memory."""

    name: str
    memory: float
    flops: float
    bandwidth: float


SHEETS = (
    GPU("A100", 80e9, 312e12, 2.0e12),
    GPU("H100", 80e9, 989e12, 3.35e12),
    GPU("H200", 141e9, 989e12, 4.8e12),
    GPU("B200", 180e9, 2250e12, 7.7e12),
    GPU("GB200", 186e9, 2450e12, 8.0e12),
)
GPUS = {gpu.name: gpu for gpu in SHEETS}


@dataclass(frozen=True)
class Setup(Run):
    """A run of a known model on a kind of GPU."""

    model: Model
    gpu: GPU

    def backend(self, key: str) -> Any:
        """A key of the training backend's section."""
        return self[f"{self.section}.{key}"]


class Stage(NamedTuple):
    """A pipeline stage: its layers, embedding, output layer, and micro-batches in flight."""

    layers: int
    first: bool
    last: bool
    in_flight: int


def micro_batch_tokens(run: Setup) -> float:
    """Of a micro-batch in training, on one context-parallel rank."""
    longest = run["policy.max_total_sequence_length"]
    tokens = run["policy.train_micro_batch_size"] * longest
    if run.packing:
        tokens = run[f"policy.{run.packing}.train_mb_tokens"] or longest
    return tokens / run.layout.context


def stages(run: Setup) -> list[Stage]:
    """Of the pipeline; layers spread evenly but for what the config gives the first and last."""
    pp, total = run.layout.pipeline, run.model.num_hidden_layers
    if pp == 1:
        return [Stage(total, True, True, 1)]
    given = [run.backend(f"num_layers_in_{end}_pipeline_stage") for end in ("first", "last")]
    fixed = [x for x in given if x]
    even = -(-(total - sum(fixed)) // max(1, pp - len(fixed)))
    counts = [given[0] or even, *[even] * (pp - 2), given[1] or even]
    return [Stage(n, i == 0, i == pp - 1, pp - i) for i, n in enumerate(counts)]


def held(run: Setup, stage: Stage) -> tuple[float, float]:
    """Parameters of a stage on a GPU: outside experts (over TP), and of experts (EP x ETP)."""
    m, p = run.model, run.layout
    moe = stage.layers * m.moe_layers / m.num_hidden_layers
    dense = stage.layers * m.attention + (stage.layers - moe) * m.dense_mlp
    dense += moe * m.shared_experts * m.expert
    ends = stage.first + stage.last if not (m.tie_word_embeddings and p.pipeline == 1) else 1
    dense += ends * m.vocab_size * m.hidden_size
    experts = moe * m.experts * m.expert / (p.expert * p.expert_tensor)
    return dense / p.tensor + moe * (m.hidden_size * m.experts), experts


def trainable(run: Setup) -> float:
    """The share of the parameters that has gradients: 1, or LoRA's."""
    for path in LORA:
        if run[f"{path}.enabled"]:
            m, rank = run.model, run[f"{path}.dim"] or 8
            ends = 4 * 2 * m.hidden_size + 3 * (m.hidden_size + m.intermediate_size)
            return rank * ends * m.num_hidden_layers / m.parameters
    return 1.0


def _states(run: Setup, stage: Stage) -> dict[str, float]:
    dense, experts = held(run, stage)
    p, share = run.layout, trainable(run)
    if p.backend == "dtensor":  # FSDP: float32 weights, all sharded; one layer whole in bf16
        each = run.model.parameters / p.train_gpus
        layer = 2 * 2 * run.model.parameters / run.model.num_hidden_layers / p.tensor
        return {
            "weights": 4 * each + layer,
            "gradients": 4 * each * share,
            "optimizer": 0.0 if run.backend("cpu_offload") else 8 * each * share,
        }
    fp32 = run.backend("distributed_data_parallel_config.grad_reduce_in_fp32")
    sharded = run.backend("optimizer.use_distributed_optimizer") is not False
    replicas = p.train_gpus / (p.tensor * p.pipeline) if sharded else 1
    expert_replicas = p.train_gpus / p.expert_ranks if sharded else 1
    adam = ADAM * share * (dense / replicas + experts / expert_replicas)
    offloaded = run.backend("optimizer.optimizer_offload_fraction") or 0.0
    kept = 1 - (offloaded if run.backend("optimizer.optimizer_cpu_offload") else 0.0)
    fp8 = 2 if run.backend("fp8_cfg.enabled") else 0  # of each weight, along rows and columns
    return {
        "weights": (2 + fp8) * (dense + experts),
        "gradients": (4 if fp32 else 2) * share * (dense + experts),
        "optimizer": adam * kept,
    }


def _activations(run: Setup, stage: Stage) -> float:
    """[K], 2 bytes a number, of the micro-batches in flight.

    Outside tensor parallelism: inputs and outputs of two norms, 8 h. Inside: queries and their
    output, keys, values; gate, up and their product, 6 bytes a feature; routed tokens, in and out.
    """
    m, p, tokens = run.model, run.layout, micro_batch_tokens(run)
    outside = tokens * m.hidden_size / (p.tensor if p.sequence_parallel else 1)
    moe = m.moe_layers / m.num_hidden_layers
    routed = (m.experts_per_token + m.shared_experts) * m.moe_intermediate_size
    features = (1 - moe) * m.intermediate_size + moe * routed
    inside = 4 * (m.num_attention_heads + m.kv_heads) * m.head_size + 6 * features
    inside += moe * 4 * m.experts_per_token * m.hidden_size
    layer = 8 * outside + tokens * inside / p.tensor
    whole = run.backend("recompute_granularity") != "selective"
    if run.backend("activation_checkpointing") and whole:
        return stage.in_flight * stage.layers * 2 * outside + layer
    return stage.in_flight * stage.layers * layer


def _logits(run: Setup) -> float:
    """NeMo-RL's float32 logits, their softmax and their gradient; in chunks, the first and last."""
    if run.backend("use_fused_linear_logprobs"):
        return 0.0
    numbers = micro_batch_tokens(run) * run.model.vocab_size / run.layout.tensor
    chunked = run["policy.logprob_chunk_size"]
    logits = 2 if chunked and run.backend("defer_fp32_logits") else 4
    return numbers * (logits + 4 + (0 if chunked else 4))


def training(run: Setup) -> dict[str, float]:
    """Bytes by component on a GPU of the fullest pipeline stage."""

    def of(stage: Stage) -> dict[str, float]:
        parts = _states(run, stage) | {"activations": _activations(run, stage)}
        parts["logits and log-probs"] = _logits(run) if stage.last else 0.0
        return parts | {"workspace": WORKSPACE}

    return max(map(of, stages(run)), key=lambda parts: sum(parts.values()))


def generation(run: Setup) -> dict[str, float]:
    """Bytes by component of an engine's GPU; the KV cache takes what is left of its share."""
    m, p = run.model, run.layout
    weight = 1 if run[f"{VLLM}.precision"] == "fp8" else 2
    weights = weight * m.parameters / (p.generation_tensor * p.generation_pipeline)
    share = (run[f"{VLLM}.gpu_memory_utilization"] or 0.9) * run.gpu.memory
    cache = max(0.0, share - weights - ENGINE_WORKSPACE)
    return {"weights": weights, "workspace": ENGINE_WORKSPACE, "KV cache": cache}


def cached_tokens(run: Setup) -> float:
    """Tokens that an engine's KV cache holds."""
    m, p = run.model, run.layout
    number = 1 if str(run[f"{VLLM}.kv_cache_dtype"]).startswith("fp8") else 2
    split = 1 if m.kv_lora_rank else min(p.generation_tensor, m.kv_heads)
    token = number * m.num_hidden_layers * m.kv_numbers / (split * p.generation_pipeline)
    return generation(run)["KV cache"] / token


def on_host(run: Setup) -> dict[str, float]:
    """Bytes of a node's memory: the reference, and what colocated training leaves there."""
    p, parts = run.layout, [_states(run, stage) for stage in stages(run)]
    compared = run["loss_fn.reference_policy_kl_penalty"]
    weights = max(s["weights"] for s in parts) if compared else 0.0
    states = max(s["weights"] + s["optimizer"] for s in parts) if p.colocated else 0.0
    return {
        "reference weights": p.gpus_per_node * weights,
        "offloaded while generating": p.gpus_per_node * states,
    }
