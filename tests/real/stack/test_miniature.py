"""Small models of the architectures that configs name, and the tokenizer that stands in."""

import pytest
import torch
import transformers
from rehearsal import miniature

from nemo_algos.preflight.check.data import stand_in_tokenizer
from nemo_algos.preflight.check.known_models import configs

NAMES = [n for n, v in configs().items() if not miniature.refusal(v, "dtensor")]
MARKED = stand_in_tokenizer.byte_tokenizer(tuple(stand_in_tokenizer.MARKS.values()))
ALPHABET = 256 + len(stand_in_tokenizer.SPECIAL)


@pytest.mark.parametrize("name", NAMES)
def test_a_miniature_is_of_the_same_family_and_small(name):
    values = miniature.shrunk(configs()[name], MARKED)
    config = transformers.AutoConfig.for_model(**values)
    with torch.device("meta"):
        model = miniature.head_class(values).from_config(config)
    assert config.model_type == configs()[name]["model_type"]
    assert sum(p.numel() for p in model.parameters()) < 2_000_000
    assert config.get_text_config().num_hidden_layers == miniature.LAYERS
    tied = transformers.AutoConfig.for_model(**configs()[name]).tie_word_embeddings
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) == tied


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"num_key_value_heads": 12}, (4, 4)),
        ({"num_key_value_heads": 2}, (4, 2)),
        ({"num_key_value_heads": None}, (4, 4)),
    ],
)
def test_grouped_heads_stay_grouped(change, want):
    values = configs()["Qwen/Qwen2.5-1.5B"] | change
    small = miniature.shrunk(values, MARKED)
    assert (small["num_attention_heads"], small["num_key_value_heads"]) == want


def test_layers_of_each_kind_stay():
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    small = miniature.shrunk(configs()["Qwen/Qwen2.5-1.5B"] | {"layer_types": kinds}, MARKED)
    assert small["layer_types"] == ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    "name", ["moonshotai/Moonlight-16B-A3B-Instruct", "deepseek-ai/DeepSeek-V3"]
)
def test_groups_of_experts_divide_them(name):
    """vLLM sorts the experts into groups; transformers' default is 8 of them."""
    config = transformers.AutoConfig.for_model(**miniature.shrunk(configs()[name], MARKED))
    assert config.n_routed_experts % config.n_group == 0 and config.topk_group <= config.n_group


def test_bytes_come_back_and_a_turn_is_opened():
    made = stand_in_tokenizer.byte_tokenizer()
    text = "5 ≤ \\frac{1}{2}\n\tπ"
    assert made.decode(made(text)["input_ids"]) == text
    assert len(made) == ALPHABET
    turns = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    shown = made.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert shown.endswith("<|im_start|>assistant\n") and "S<|im_end|>" in shown
    assert made.pad_token_id != made.eos_token_id


def test_a_model_that_nobody_knows_is_refused():
    """By name: what needs no model, its prompts and rewards, is rehearsed before."""
    values, origin = miniature.read_config("nobody/nothing")
    assert origin is None and "--model" in str(miniature.refusal(values, "dtensor"))
