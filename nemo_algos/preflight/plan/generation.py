"""Bytes of a GPU that generates, and of a node's memory, under NeMo-RL."""

from nemo_algos.preflight.check.layout import VLLM
from nemo_algos.preflight.plan.nemo_rl_arguments import Setup, training
from nemo_algos.preflight.plan.states import states

ENGINE_WORKSPACE = 4e9  # vLLM's activations and CUDA graphs; an assumption
SLEEPING = 2e9  # what a sleeping vLLM keeps of a GPU that trains; an assumption


def sleeping(run: Setup) -> dict[str, float]:
    """Bytes of the engine on a GPU that trains."""
    return {"sleeping engine": SLEEPING} if run.layout.colocated else {}


def weight_bytes(run: Setup, met: float = 1.0) -> float:
    """Of an engine's GPU, with this share of the experts; EP beyond TP spreads experts further."""
    m = run.model
    p = run.layout
    experts = m.moe_layers * m.experts * m.expert
    ranks = p.generation_tensor * p.generation_pipeline
    wider = max(1.0, p.generation_expert / p.generation_tensor)
    each = 1 if run[f"{VLLM}.precision"] == "fp8" else 2
    return each * (m.parameters - experts + met * experts / wider) / ranks


def generation(run: Setup) -> dict[str, float]:
    """Bytes by component of an engine's GPU; the KV cache takes what is left of its share."""
    weights = weight_bytes(run)
    share = (run[f"{VLLM}.gpu_memory_utilization"] or 0.9) * run.gpu.memory
    cache = max(0.0, share - weights - ENGINE_WORKSPACE)
    return {"weights": weights, "workspace": ENGINE_WORKSPACE, "KV cache": cache}


def sequence_bytes(run: Setup, tokens: float) -> float:
    """Of an engine's GPU for a sequence of `tokens`: keys and values, and recurrent states."""
    m = run.model
    p = run.layout
    number = 1 if str(run[f"{VLLM}.kv_cache_dtype"]).startswith("fp8") else 2
    split = 1 if m.attention.latent_kv else min(p.generation_tensor, m.kv_heads)
    seen = m.having("*") * tokens + m.having("W") * min(tokens, m.window)
    states = m.having("M") * m.mamba.cached / p.generation_tensor if m.mamba else 0.0
    return (number * m.attention.cached * seen / split + states) / p.generation_pipeline


def cached_sequences(run: Setup, tokens: float) -> float:
    """Sequences of `tokens` that an engine's cache holds."""
    return generation(run)["KV cache"] / sequence_bytes(run, tokens)


def on_host(run: Setup) -> dict[str, float]:
    """Bytes of a node's memory: the reference, and what colocated training leaves there."""
    p = run.layout
    made = training(run)
    parts = [states(made, rank) for rank in range(p.pipeline)]
    compared = run["loss_fn.reference_policy_kl_penalty"]
    weights = max(s["weights"] for s in parts) if compared else 0.0
    left = max(s["weights"] + s["optimizer"] for s in parts) if p.colocated else 0.0
    return {
        "reference weights": p.gpus_per_node * weights,
        "offloaded while generating": p.gpus_per_node * left,
    }
