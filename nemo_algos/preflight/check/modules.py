"""A plain decoder's linear layers by name: what vLLM fuses into one, and of which parameters."""

from nemo_algos.preflight.check.decoder import Model

ROUTER = "mlp.gate"  # which no engine quantises
PLAIN = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3")
Parts = dict[str, tuple[str, ...]]  # a module of vLLM: its parameters in a checkpoint


def modules(model: Model, layer: int) -> Parts:
    """The linear modules of a layer, the router among them, below `model.layers.N.`.

    None of a family whose names are others.
    """
    if model.model_type not in PLAIN:
        return {}
    mixture = "E" in model.layers[layer]
    return _attention(model) | (_experts(model) if mixture else _gated("mlp"))


def _attention(model: Model) -> Parts:
    latent = "kv_a_proj_with_mqa"
    names = ["qkv_proj", "o_proj"]
    if model.attention.latent_kv:
        query = (
            ["fused_qkv_a_proj", "q_b_proj"] if model.attention.latent_query else ["q_proj", latent]
        )
        names = [*query, "kv_b_proj", "o_proj"]
    fused = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "fused_qkv_a_proj": ["q_a_proj", latent]}
    parts = {name: fused.get(name, [name]) for name in names}
    return {f"self_attn.{k}": tuple(f"self_attn.{part}" for part in v) for k, v in parts.items()}


def _gated(name: str) -> Parts:
    gated = (f"{name}.gate_proj", f"{name}.up_proj")
    return {f"{name}.gate_up_proj": gated, f"{name}.down_proj": (f"{name}.down_proj",)}


def _experts(model: Model) -> Parts:
    """All experts of a layer are one module, left out whole if either parameter is."""
    routed = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    shared = _gated("mlp.shared_experts") if model.mixture and model.mixture.shared else {}
    return {"mlp.experts": routed, ROUTER: (ROUTER,)} | shared
