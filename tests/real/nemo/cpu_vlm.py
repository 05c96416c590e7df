"""LLaVA with random weights and pictures of four tokens, and its processor."""

from typing import Any

import transformers
from cpu_task import tokenizer as words

TEMPLATE = (
    "{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'image' %}<image> "
    "{% else %}{{ c['text'] }} {% endif %}{% endfor %}{% endfor %}"
)
SIDE, PATCH = 28, 14  # of an image, in pixels
TOKENS = (SIDE // PATCH) ** 2  # of an image


def processor() -> Any:
    """Over a vocabulary of words."""
    tokenizer = words()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    size = {"height": SIDE, "width": SIDE}
    images = transformers.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=size)
    return transformers.LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )


def model(image: int) -> Any:
    """image: the token that stands for a patch, the last of the vocabulary."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    sizes |= {"initializer_range": 0.3}
    text = transformers.LlamaConfig(**sizes, num_hidden_layers=1, vocab_size=image + 1)
    vision = transformers.CLIPVisionConfig(
        **sizes, num_hidden_layers=2, image_size=SIDE, patch_size=PATCH
    )
    config = transformers.LlavaConfig(
        text_config=text, vision_config=vision, image_token_index=image
    )
    return transformers.LlavaForConditionalGeneration(config)
