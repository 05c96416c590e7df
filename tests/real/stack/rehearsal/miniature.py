"""A model of the same architecture that fits anywhere: few layers, narrow, few experts, random."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_algos.preflight.check.data.stand_in_tokenizer import MARKS, cached_folder
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
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
}
HEADS = 4  # of queries; as many of keys where the model has as many, else half
RECURRENT = ("mamba", "linear_attention", "hybrid_override_pattern", "full_attention_interval")
SEEN = {  # of the encoder of images
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": SMALL["hidden_size"],
    "window_size": 56,
    "fullatt_block_indexes": [1],
}
SEEING = ("qwen2_5_vl",)  # the models of images that are made small here
LOUD = 0.5  # of every token's embedding, below 0 of a picture's marks


def read_config(name: str) -> tuple[dict[str, Any], Path | None]:
    """What a model's config.json says, and the folder that has it (None: of the shipped table).

    Nothing of a model that is neither a folder, nor in the hub's cache, nor known.
    """
    folder = Path(name) if (Path(name) / FILE).is_file() else cached_folder(name)
    if folder is not None:
        return json.loads((folder / FILE).read_text()), folder
    return dict(configs().get(name, {})), None


def refusal(values: Mapping[str, Any], backend: str) -> str | None:
    """Why this architecture does not run on a CPU here. backend: megatron | dtensor."""
    if not values:
        return f"its model's {FILE} is not at hand: name a folder that has it, --model FOLDER"
    text = json.dumps(values)
    kind = values.get("model_type")
    if ("vision_config" in text or "audio_config" in text) and kind not in SEEING:
        return f"of models of images or sounds only {', '.join(SEEING)} is made small, not {kind}"
    if any(word in text for word in RECURRENT):
        return "its recurrent layers need kernels that only a GPU has"
    if backend == "megatron" and values.get("kv_lora_rank"):
        return "megatron-core has its latent attention in Transformer Engine alone"
    if backend == "dtensor" and "n_routed_experts" in values:
        return f"vLLM takes no experts of transformers' {kind} at a refit: a tensor for all of them"
    return None


def shrunk(values: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """The values of the miniature's config.json, for a tokenizer of transformers."""
    values = {**values, **values.get("text_config", {}), "model_type": values["model_type"]}
    small: dict[str, Any] = {k: v for k, v in SMALL.items() if values.get(k) is not None}
    heads, groups = values["num_attention_heads"], values.get("num_key_value_heads")
    small["num_attention_heads"] = HEADS
    small["num_key_value_heads"] = HEADS if groups in (None, heads) else HEADS // 2
    small["num_hidden_layers"] = LAYERS
    if "n_routed_experts" in small:  # 4 are not divided into the 8 groups of transformers' default
        small |= {"n_group": 1, "topk_group": 1}
    kinds = values.get("layer_types")
    if kinds:
        small["layer_types"] = [*dict.fromkeys(kinds), *kinds][:LAYERS]
    small["vocab_size"] = len(tokenizer)
    small |= {f"{k}_token_id": getattr(tokenizer, f"{k}_token_id") for k in ("bos", "eos", "pad")}
    dropped = (
        "text_config",
        "quantization_config",
        "torch_dtype",
        "dtype",
        "num_nextn_predict_layers",
        "auto_map",
    )
    kept = {k: v for k, v in values.items() if k not in dropped}
    return {**kept, **small, **_seeing(values, tokenizer), "dtype": "float32"}


def _seeing(values: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """What a model of images has beside: a small encoder, and the tokens that mark pictures."""
    if "vision_config" not in values:
        return {}
    marks = dict(zip(MARKS, tokenizer.convert_tokens_to_ids([*MARKS.values()]), strict=True))
    width = SMALL["hidden_size"] // HEADS
    scale = values["hidden_size"] // values["num_attention_heads"] // width
    key = "rope_parameters" if "rope_parameters" in values else "rope_scaling"
    rope = dict(values[key])
    rope["mrope_section"] = [part // scale for part in rope["mrope_section"]]
    return {**marks, key: rope, "vision_config": {**values["vision_config"], **SEEN}}


def save(values: Mapping[str, Any], tokenizer: Path, folder: Path) -> int:
    """Write the miniature with random weights, and its tokenizer; the number of its parameters."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(**values)
    torch.manual_seed(SEED)
    model = head_class(values).from_config(config, dtype=torch.float32)
    if "vision_config" in values:
        _never_say(model, [values[name] for name in MARKS])
    model.save_pretrained(folder)
    transformers.AutoProcessor.from_pretrained(tokenizer).save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def head_class(values: Mapping[str, Any]) -> Any:
    """What loads a model with these values."""
    import transformers

    sees = "vision_config" in values
    return transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM


def _never_say(model: Any, tokens: list[int]) -> None:
    """Random weights would write a picture's mark into a response, where there is no picture."""
    import torch

    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            layer.weight[:, 0] = LOUD
            layer.weight[tokens, 0] = -LOUD
