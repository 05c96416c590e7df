"""The countdown models in Hugging Face's format: transformers' Llama, with experts its Mixtral."""

from torch import Tensor

from nemo_algos.engines.data.countdown import EOS, PAD, VOCABULARY
from nemo_algos.engines.local.experts import EXPERTS_PER_TOKEN
from nemo_algos.engines.local.schema import Shape
from nemo_algos.engines.local.tiny import ROPE_THETA, Layer, Tiny


def hf_state(model: Tiny) -> dict[str, Tensor]:
    """The weights under transformers' names (tied embeddings)."""
    embed, norm = model.embed.weight, model.norm.weight
    state = {"model.embed_tokens.weight": embed, "model.norm.weight": norm}
    for i, layer in enumerate(model._layers()):
        q, k, v = layer.qkv.weight.chunk(3)
        names = {
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.out.weight,
            "input_layernorm": layer.attention_norm.weight,
            "post_attention_layernorm": layer.mlp_norm.weight,
            **_mlp(layer, model.shape.experts),
        }
        state |= {f"model.layers.{i}.{name}.weight": weight for name, weight in names.items()}
    return {name: weight.detach().clone().contiguous() for name, weight in state.items()}


def _mlp(layer: Layer, experts: int) -> dict[str, Tensor]:
    """The MLP, or the router and w1 (gate), w2 (down), w3 (up) of every expert."""
    gate, up = layer.gate_up.weight.chunk(2)
    if layer.router is None:
        return {"mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": layer.down.weight}
    weights = {"w1": gate.chunk(experts), "w3": up.chunk(experts)}
    weights["w2"] = layer.down.weight.chunk(experts, 1)
    every = {f"experts.{j}.{w}": of[j] for w, of in weights.items() for j in range(experts)}
    block = {"gate": layer.router.gate.weight, **every}
    return {f"block_sparse_moe.{name}": weight for name, weight in block.items()}


def hf_config(shape: Shape) -> dict[str, object]:
    """config.json for transformers."""
    routed = shape.experts > 1
    experts = {"num_local_experts": shape.experts, "num_experts_per_tok": EXPERTS_PER_TOKEN}
    return {
        "architectures": ["MixtralForCausalLM" if routed else "LlamaForCausalLM"],
        "model_type": "mixtral" if routed else "llama",
        **(experts if routed else {}),
        "vocab_size": len(VOCABULARY),
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "intermediate_size": shape.hidden,
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }
