"""Tiny models on disk, random weights from one seed, the tokenizer of tests/real/nemo."""

from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from cpu_task import VOCABULARY, tokenizer
from torch import Tensor
from transformers import core_model_loading

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,  # of 32, the smallest that vLLM on a CPU takes
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "head_dim": 32,
    "norm_topk_prob": True,
    "pad_token_id": None,  # padding is routed, and trained by the routers' loss
}
LATENT = {  # DeepSeek's attention, with no layer of experts
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 2,
    "rope_interleave": True,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "odd": ("Llama", {"vocab_size": VOCABULARY + 1}),  # two ranks do not divide it
    "grouped": ("Llama", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "qwen2": ("Qwen2", {}),
    "experts": ("Qwen3Moe", EXPERTS),
    "latent": ("DeepseekV3", LATENT),
}


def saved(kind: str, folder: Path) -> Path:
    """The model of this kind in folder/KIND; made at the first call."""
    path = folder / kind
    if not (path / "config.json").exists():
        family, own = KINDS[kind]
        config = getattr(transformers, f"{family}Config")(**SIZES | own)
        torch.manual_seed(0)
        made = getattr(transformers, f"{family}ForCausalLM")(config)
        made.save_pretrained(path)
        tokenizer().save_pretrained(path)
    return path


def loaded(path: Path) -> Any:
    """The plain Hugging Face model: float32, its own attention."""
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    pictured = hasattr(transformers.AutoConfig.from_pretrained(path), "vision_config")
    kind = "AutoModelForImageTextToText" if pictured else "AutoModelForCausalLM"
    return getattr(transformers, kind).from_pretrained(path, **options).eval()


def adapted(model: Any, adapters: dict[str, Tensor], lora: dict[str, Any]) -> Any:
    """The model with these LoRA adapters, by peft; lora: NeMo-RL's section.

    Two that begin alike stay one: Megatron has one for query, key and value, and gate and up.
    """
    modules = sorted({name.rsplit(".", 2)[0] for name in adapters})
    config = peft.LoraConfig(r=lora["dim"], lora_alpha=lora["alpha"], target_modules=modules)
    with_adapters = peft.get_peft_model(model, config)
    named = {f"base_model.model.{name}": value for name, value in adapters.items()}
    peft.set_peft_model_state_dict(with_adapters, named)
    first: dict[bytes, Any] = {}
    for name in modules:
        down = model.get_submodule(name).lora_A["default"]
        down.weight = first.setdefault(down.weight.detach().numpy().tobytes(), down.weight)
    return with_adapters


def routes(config: Any, ids: Tensor) -> Tensor:
    """[B,S,L,K]: the experts of each token and layer, as a sampler would hand them over."""
    random = torch.Generator().manual_seed(2)
    sizes = (config.num_hidden_layers, config.vocab_size, config.num_experts)
    order = torch.rand(sizes, generator=random).argsort(-1)
    return order[:, ids, : config.num_experts_per_tok].permute(1, 2, 0, 3)


def routed(model: Any) -> Any:
    """The model, its tokens going where `routes` says."""
    held: dict[str, Tensor] = {}

    def remember(_: Any, args: tuple[Tensor]) -> None:
        held["routes"] = routes(model.config, args[0])

    def select(layer: int, out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        chosen = held["routes"][:, :, layer].flatten(0, 1)
        scores = out[0].softmax(-1).gather(-1, chosen)
        return out[0], scores / scores.sum(-1, keepdim=True), chosen

    model.register_forward_pre_hook(remember)
    for layer, block in enumerate(model.model.layers):
        block.mlp.gate.register_forward_hook(lambda _, __, out, layer=layer: select(layer, out))
    return model


def imbalance(model: Any, ids: Tensor) -> Tensor:
    """Switch's auxiliary loss of these tokens, a layer's by itself, times their number."""
    parts = []
    for logits in model(ids, output_router_logits=True).router_logits:
        experts, chosen = logits.shape[-1], model.config.num_experts_per_tok
        taken = torch.zeros_like(logits).scatter(-1, logits.topk(chosen).indices, 1.0)
        shares = taken.mean(0) * logits.softmax(-1).mean(0)
        parts.append(len(logits) * experts / chosen * shares.sum())
    return torch.stack(parts).sum()


def named(model: Any) -> dict[str, Tensor]:
    """Its weights by the names on disk; adapters are merged into them for good."""
    if isinstance(model, peft.PeftModel):
        model = model.merge_and_unload()
    return core_model_loading.revert_weight_conversion(model, model.state_dict())
