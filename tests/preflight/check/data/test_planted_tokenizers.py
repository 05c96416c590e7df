"""Tokenizers and chat templates with a mistake in them, and stop strings: each is named."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from nemo_algos.preflight.check.data import stand_in_tokenizer, tokenizer_checks, verdict
from nemo_algos.preflight.check.data.verdict import Stage

WORDS = "It is 5. What is 2 + 3? It is so. Ada has a pen and It is hers. "
OPENING = "<|im_start|>assistant\n"


def trained(text, size=300):
    """A small byte-level BPE of this text, with blanks in front of words as one token with them."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = list(stand_in_tokenizer.SPECIAL)
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=sorted(alphabet), special_tokens=special
    )
    inner.train_from_iterator([text] * 20, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<|im_end|>"
    )
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|endoftext|>"]})
    made.chat_template = stand_in_tokenizer.CHAT
    return made


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The folder of a model with its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    trained(WORDS).save_pretrained(folder)
    return folder


def test_a_run_without_a_tokenizer_s_name_does_not_take_one_of_this_folder(
    tmp_path, own, monkeypatch
):
    monkeypatch.chdir(own)
    found = stand_in_tokenizer.find({"name": None}, None, tmp_path, False)
    assert found == tmp_path and any(tmp_path.glob("tokenizer*"))
    assert stand_in_tokenizer.find({"name": "."}, None, tmp_path, False).samefile(own)


def judged(tmp_path, monkeypatch, own, tokenizer=None, **generation):
    folder, given = tmp_path / "run", own
    folder.mkdir()
    if tokenizer is not None:
        given = tmp_path / "given"
        tokenizer.save_pretrained(given)
    monkeypatch.setattr(
        tokenizer_checks, "load", lambda stage, section, vlm: AutoTokenizer.from_pretrained(given)
    )
    policy = {"model_name": str(own), "tokenizer": {"name": str(given)}, "generation": generation}
    config = {"policy": policy, "data": {"train": {}}}
    tokenizer_checks.judge(Stage(folder, "tokenizer"), config, "given")
    return [(v.outcome, v.key) for v in verdict.read(folder) if v.outcome != "passed"]


def changed(own, change):
    tokenizer = AutoTokenizer.from_pretrained(own)
    change(tokenizer)
    return tokenizer


def with_template(find, put):
    def change(tokenizer):
        assert find in tokenizer.chat_template
        tokenizer.chat_template = tokenizer.chat_template.replace(find, put)

    return change


NAME, TEMPLATE = "policy.tokenizer.name", "policy.tokenizer.chat_template"
ASKING = "{% if add_generation_prompt %}"
PLANTED = {
    "its own": (lambda own: None, []),
    "a copy": (lambda own: changed(own, lambda t: None), []),
    "with tokens added": (lambda own: changed(own, lambda t: t.add_tokens(["<think>"])), []),
    "another of its size": (
        lambda own: trained("zq xw vy " + WORDS[::-1], 300),
        [("failed", NAME)],
    ),
    "another size": (lambda own: trained("zq xw vy " + WORDS[::-1], 340), [("failed", NAME)]),
    "an opening twice": (
        lambda own: changed(own, with_template(OPENING, 2 * OPENING)),
        [("failed", TEMPLATE)],
    ),
    "a blank at the end": (
        lambda own: changed(own, with_template(OPENING, OPENING + "{{ ' ' }}")),
        [("warning", TEMPLATE)],
    ),
    "no generation prompt": (
        lambda own: changed(own, with_template(ASKING, "{% if false %}")),
        [("failed", TEMPLATE)],
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_tokenizer_is_named(name, own, tmp_path, monkeypatch):
    make, expected = PLANTED[name]
    assert judged(tmp_path, monkeypatch, own, make(own)) == expected
