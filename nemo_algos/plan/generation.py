"""Bytes of a GPU that generates, and of a node's memory, under NeMo-RL."""

from nemo_algos.plan.nemo_rl_arguments import Setup, training
from nemo_algos.plan.states import states
from nemo_algos.preflight.layout import VLLM

ENGINE_WORKSPACE = 4e9  # vLLM's activations and CUDA graphs; an assumption
SLEEPING = 2e9  # what a sleeping vLLM keeps of a GPU that trains; an assumption


def sleeping(run: Setup) -> dict[str, float]:
    """Bytes of the engine on a GPU that trains."""
    return {"sleeping engine": SLEEPING} if run.layout.colocated else {}


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
    p, made = run.layout, training(run)
    parts = [states(made, rank) for rank in range(p.pipeline)]
    compared = run["loss_fn.reference_policy_kl_penalty"]
    weights = max(s["weights"] for s in parts) if compared else 0.0
    left = max(s["weights"] + s["optimizer"] for s in parts) if p.colocated else 0.0
    return {
        "reference weights": p.gpus_per_node * weights,
        "offloaded while generating": p.gpus_per_node * left,
    }
