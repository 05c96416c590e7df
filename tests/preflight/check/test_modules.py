"""The names of a model's linear layers are transformers', as NeMo-RL lists them for vLLM."""

import pytest
import torch
from transformers import AutoModel, DeepseekV3Config, LlamaConfig, Qwen3MoeConfig

from nemo_algos.preflight.check.decoder import modules
from nemo_algos.preflight.check.known_models import facts

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LATENT = {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
LATENT |= {"n_routed_experts": 4, "moe_intermediate_size": 8, "first_k_dense_replace": 1}
LATENT |= {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 1}
CONFIGS = {
    "llama": LlamaConfig(**SMALL),
    "experts": Qwen3MoeConfig(**SMALL, num_experts=4, moe_intermediate_size=8, head_dim=8),
    "latent": DeepseekV3Config(**SMALL, **LATENT, q_lora_rank=8),
    "latent_query": DeepseekV3Config(**SMALL, **LATENT, q_lora_rank=None),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_a_models_linear_layers_are_these(config):
    with torch.device("meta"):
        built = AutoModel.from_config(config)
    linear = {n.removesuffix(".weight") for n, p in built.named_parameters() if p.dim() > 1}
    model, named = facts(config.to_dict(), "here"), {"embed_tokens"}
    for layer in range(len(model.layers)):
        parts = (part for names in modules(model, layer).values() for part in names)
        named |= {f"layers.{layer}.{part}" for part in parts}
    assert named == linear
