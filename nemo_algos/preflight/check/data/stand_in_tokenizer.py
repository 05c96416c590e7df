"""The tokenizer of a check: the run's own, else a byte tokenizer; for a VLM its processor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_algos.preflight.check.known_models import FILE

SPECIAL = ("<pad>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
MARKS = {  # key of a Qwen VLM's config.json -> the token whose id it gives
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def cached_folder(name: str) -> Path | None:
    """The folder of a model of the hub that has been downloaded."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, FILE)
    except ValueError:  # no name of the hub
        return None
    if isinstance(found, str):
        return Path(found).parent
    return None


def find(section: Mapping[str, Any], origin: Path | None, folder: Path, sees: bool) -> Path:
    """The folder of the run's own tokenizer; else `folder`, with a byte tokenizer written into it.

    section: policy.tokenizer; origin: the model's folder; sees: write an image processor with it.
    """
    name = str(section.get("name") or "")
    for place in (Path(name) if name else None, cached_folder(name), origin):
        if place is not None and any(place.glob("tokenizer*")):
            return place
    made = byte_tokenizer(tuple(MARKS.values()) if sees else ())
    (processor(made) if sees else made).save_pretrained(folder)
    return folder


def load(folder: Path) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder)


def byte_tokenizer(marks: tuple[str, ...] = ()) -> Any:
    """A token for each byte and mark, and a plain chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *letters, *marks])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", "<|endoftext|>", *marks],
    )
    made.chat_template = CHAT
    return made


def processor(tokenizer: Any) -> Any:
    """Qwen2.5-VL's own, over this tokenizer."""
    import transformers

    return transformers.Qwen2_5_VLProcessor(
        transformers.Qwen2VLImageProcessor(),
        tokenizer,
        transformers.Qwen2VLVideoProcessor(),
        chat_template=tokenizer.chat_template,
    )
