"""A plain decoder's linear layers by name: what vLLM fuses into one, and of which parameters."""

from nemo_algos.preflight.models import Model

ROUTER = "mlp.gate"  # which no engine quantises
Parts = dict[str, tuple[str, ...]]  # a module of vLLM: its parameters in a checkpoint


def modules(model: Model, layer: int) -> Parts:
    """The modules of a layer that FP8 quantises, below `model.layers.N.`."""
    return _attention(model) | (_experts(model) if is_mixture(model, layer) else _gated("mlp"))


def is_mixture(model: Model, layer: int) -> bool:
    """Whether a layer has experts."""
    return bool(model.experts) and layer >= model.dense_layers


def _attention(model: Model) -> Parts:
    q, k, v, o = _alone("q"), _alone("k"), _alone("v"), _alone("o")
    if not model.kv_lora_rank:
        return {"self_attn.qkv_proj": (*q, *k, *v), "self_attn.o_proj": o}
    up, latent = _alone("kv_b"), ("self_attn.kv_a_proj_with_mqa",)
    query = {"self_attn.q_proj": q, "self_attn.kv_a_proj_with_mqa": latent}
    if model.q_lora_rank:
        fused = (*_alone("q_a"), *latent)
        query = {"self_attn.fused_qkv_a_proj": fused, "self_attn.q_b_proj": _alone("q_b")}
    return query | {"self_attn.kv_b_proj": up, "self_attn.o_proj": o}


def _alone(name: str) -> tuple[str]:
    return (f"self_attn.{name}_proj",)


def _gated(name: str) -> Parts:
    gated = (f"{name}.gate_proj", f"{name}.up_proj")
    return {f"{name}.gate_up_proj": gated, f"{name}.down_proj": (f"{name}.down_proj",)}


def _experts(model: Model) -> Parts:
    """All experts of a layer are one module, left out whole if either parameter is."""
    routed = {"mlp.experts": ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")}
    return routed | (_gated("mlp.shared_experts") if model.shared_experts else {})
