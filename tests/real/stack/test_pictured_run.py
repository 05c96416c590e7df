"""A whole run of a model of images: vLLM sees the pictures, DTensor's worker trains on them.

Qwen2.5-VL with random weights, whose words are the answers.
"""

import json
import math
from pathlib import Path

import coloured
import pytest
import torch
import transformers
from coloured import COLOURS
from PIL import Image
from runs import Env, Run
from tokenizers import Tokenizer, models

CONFIG = Path(__file__).with_name("pictures.yaml")
STEPS, ROLLOUTS = 2, 16
SEEN = 0.01  # nats that a picture makes at least
MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CHAT = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
WIDE = {"hidden_size": 64, "intermediate_size": 64}


def saved(folder: Path) -> Path:
    """The model and its processor."""
    words = ["<pad>", "<eos>", "?", *(f"<answer>{colour}</answer>" for colour in COLOURS)]
    model = models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>")
    reader = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(model), pad_token="<pad>", eos_token="<eos>"
    )
    reader.add_special_tokens({"additional_special_tokens": [*MARKS]})
    area = coloured.SIDE**2
    processor = transformers.Qwen2_5_VLProcessor(
        transformers.Qwen2VLImageProcessor(min_pixels=area, max_pixels=area),
        reader,
        transformers.Qwen2VLVideoProcessor(),
        chat_template=CHAT,
    )
    torch.manual_seed(0)
    made = transformers.Qwen2_5_VLForConditionalGeneration(config(reader))
    with torch.no_grad():  # behind "?", the prompt's last word, no mark of a picture is sampled
        made.get_input_embeddings().weight[words.index("?"), 0] = 3.0
        made.lm_head.weight[:, 0] = 0.0
        made.lm_head.weight[reader.convert_tokens_to_ids([*MARKS]), 0] = -3.0
    made.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def logprobs(model: Path, colour: str) -> torch.Tensor:
    """[V] of the answer, by transformers alone."""
    picture = {"type": "image", "image": Image.new("RGB", (coloured.SIDE,) * 2, colour)}
    asked = [{"role": "user", "content": [picture, {"type": "text", "text": "?"}]}]
    options = {"tokenize": True, "return_dict": True, "return_tensors": "pt"}
    read = transformers.AutoProcessor.from_pretrained(model).apply_chat_template(asked, **options)
    made = transformers.AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        return made(**read).logits[0, -1].log_softmax(-1)


def config(reader: transformers.PreTrainedTokenizerFast) -> transformers.Qwen2_5_VLConfig:
    """Two layers each for text and pictures."""
    start, _, image, video = reader.convert_tokens_to_ids([*MARKS])
    text = WIDE | {"vocab_size": len(reader), "num_hidden_layers": 2, "initializer_range": 0.1}
    text |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 128}
    text |= {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]}}
    text |= {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": False}
    vision = WIDE | {"depth": 2, "num_heads": 2, "out_hidden_size": 64, "patch_size": 14}
    vision |= {"fullatt_block_indexes": [1], "window_size": 56}
    marks = {"image_token_id": image, "video_token_id": video, "vision_start_token_id": start}
    return transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **marks)


@pytest.mark.usefixtures("main_alone")
def test_a_step_from_pictures_to_weights(place: tuple[Path, Env]) -> None:
    model = saved(place[0] / "qwen")
    assert (logprobs(model, "red") - logprobs(model, "blue")).abs().max() > SEEN
    keys = (f"--config={CONFIG}", f"policy.model_name={model}")
    run = Run(place, "pictures", "etr", *keys, f"grpo.max_num_steps={STEPS}")
    run.whole(program=Path(coloured.__file__))
    rewards = run.curve("reward")
    assert len(rewards) == STEPS and 0 < sum(rewards) < STEPS
    assert max(run.curve("mismatch/max")) < SEEN / 100
    assert all(map(math.isfinite, run.curve("loss"))) and min(run.curve("grad_norm")) > 0
    (path,) = run.folder.rglob("train_data_step1.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == ROLLOUTS
    image = transformers.AutoProcessor.from_pretrained(model).image_token_id
    patches = (coloured.SIDE // 28) ** 2
    assert all(row["token_ids"][0].count(image) == patches for row in rows)
