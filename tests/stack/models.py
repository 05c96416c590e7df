"""Tiny models on disk, random weights from one seed, with the tokenizer of tests/nemo's task."""

from pathlib import Path
from typing import Any

import torch
import transformers
from cpu_task import VOCABULARY, tokenizer

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,  # of 32, the smallest that vLLM on a CPU takes
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "odd": ("Llama", {"vocab_size": VOCABULARY + 1}),  # two ranks do not divide it
    "grouped": ("Llama", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "qwen2": ("Qwen2", {}),
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
    return transformers.AutoModelForCausalLM.from_pretrained(path, **options).eval()
