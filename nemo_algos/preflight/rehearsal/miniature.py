"""A model of the same architecture that fits anywhere: few layers, narrow, few experts, random."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_algos.preflight.check.known_models import FILE, configs

LAYERS, SEED = 2, 0
SMALL = {  # the keys of config.json that say a size; those that a model does not have stay away
    "hidden_size": 128,
    "intermediate_size": 256,
    "head_dim": 32,  # the smallest that vLLM takes on a CPU
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
}
HEADS = 4  # of queries; as many of keys where the model has as many, else half
RECURRENT = ("mamba", "linear_attention", "hybrid_override_pattern", "full_attention_interval")
ALPHABET = 256 + 4  # of the tokenizer that stands in: bytes, and the special tokens below
SPECIAL = ("<pad>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def read_config(name: str) -> tuple[dict[str, Any], Path | None]:
    """What a model's config.json says, and the folder that has it (None: of the shipped table).

    Nothing of a model that is neither a folder, nor in the hub's cache, nor known.
    """
    folder = Path(name) if (Path(name) / FILE).is_file() else cached_folder(name)
    if folder is not None:
        return json.loads((folder / FILE).read_text()), folder
    return dict(configs().get(name, {})), None


def cached_folder(name: str) -> Path | None:
    """The folder of a model of the hub that has been downloaded."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, FILE)
    except ValueError:  # no name of the hub
        return None
    return Path(found).parent if isinstance(found, str) else None


def refusal(values: Mapping[str, Any], backend: str) -> str | None:
    """Why this architecture does not run on a CPU here. backend: megatron | dtensor."""
    if not values:
        return f"its model's {FILE} is not at hand: name a folder that has it, --model FOLDER"
    text = json.dumps(values)
    if "vision_config" in values or "audio_config" in values:
        return "its images or sounds need kernels that only a GPU has"
    if any(word in text for word in RECURRENT):
        return "its recurrent layers need kernels that only a GPU has"
    if backend == "megatron" and values.get("kv_lora_rank"):
        return "megatron-core has its latent attention in Transformer Engine alone"
    return None


def shrunk(values: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """The values of the miniature's config.json."""
    small: dict[str, Any] = {k: v for k, v in SMALL.items() if values.get(k) is not None}
    heads, groups = values["num_attention_heads"], values.get("num_key_value_heads")
    small["num_attention_heads"] = HEADS
    small["num_key_value_heads"] = HEADS if groups in (None, heads) else HEADS // 2
    small["num_hidden_layers"] = LAYERS
    kinds = values.get("layer_types")
    if kinds:
        small["layer_types"] = [*dict.fromkeys(kinds), *kinds][:LAYERS]
    special = {"bos_token_id": None, "eos_token_id": SPECIAL.index("<|im_end|>")}
    special |= {"pad_token_id": SPECIAL.index("<pad>")}
    known = vocabulary >= values.get("vocab_size", 0)
    small |= {"vocab_size": vocabulary} | ({} if known else special)
    dropped = (
        "quantization_config",
        "torch_dtype",
        "dtype",
        "num_nextn_predict_layers",
        "auto_map",
    )
    return {**{k: v for k, v in values.items() if k not in dropped}, **small, "dtype": "float32"}


def save(values: Mapping[str, Any], tokenizer: Path, folder: Path) -> int:
    """Write the miniature with random weights, and its tokenizer; the number of its parameters."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(**values)
    torch.manual_seed(SEED)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def vocabulary(tokenizer: Path) -> int:
    """How many ids it has."""
    import transformers

    return len(transformers.AutoTokenizer.from_pretrained(tokenizer))


def tokenizer(section: Mapping[str, Any], origin: Path | None, folder: Path) -> str:
    """The run's own where it is at hand, else one of bytes in `folder`, which is written."""
    name = str(section.get("name") or "")
    for place in (Path(name), cached_folder(name), origin):
        if place is not None and any(place.glob("tokenizer*")):
            return str(place)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def byte_tokenizer() -> Any:
    """A token for each byte, and a plain chat template: where the real tokenizer is not at hand."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *letters])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", "<|endoftext|>"],
    )
    made.chat_template = CHAT
    return made
