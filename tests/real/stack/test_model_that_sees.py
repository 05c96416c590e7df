"""A miniature of a model of images: its ids, what it never says, and pictures that stand in."""

import json

import pandas
import torch
import transformers
from PIL import Image
from rehearsal import miniature

from nemo_algos.preflight.check.data import datasets, stand_in_tokenizer
from nemo_algos.preflight.check.known_models import configs

NAME = "Qwen/Qwen2.5-VL-3B-Instruct"
LEAST = 5  # nats by which a mark is less likely than any byte


def saved(folder, tied):
    """Its values, tokenizer and weights."""
    tokenizer = folder / "tokenizer"
    stand_in_tokenizer.byte_tokenizer(tuple(stand_in_tokenizer.MARKS.values())).save_pretrained(
        tokenizer
    )
    values = configs()[NAME] | {"tie_word_embeddings": tied}
    small = miniature.shrunk(values, stand_in_tokenizer.load(tokenizer))
    miniature.save(small, tokenizer, folder / "model")
    return small, stand_in_tokenizer.load(folder / "model"), folder / "model"


def test_its_ids_are_those_of_its_tokenizer(tmp_path):
    small, tokenizer, _ = saved(tmp_path, True)
    for key, mark in stand_in_tokenizer.MARKS.items():
        assert tokenizer(mark)["input_ids"] == [small[key]]
    assert tokenizer.decode(small["eos_token_id"]) == "<|im_end|>"
    assert small["vocab_size"] == len(tokenizer) == 264


def test_no_response_has_a_picture_s_mark(tmp_path):
    """Where there is no picture, training would stop at it."""
    for tied in (True, False):
        small, tokenizer, folder = saved(tmp_path / str(tied), tied)
        model = miniature.head_class(small).from_pretrained(folder)
        ids = torch.tensor([tokenizer("What is 46 + 27?")["input_ids"]])
        with torch.no_grad():
            likely = model(input_ids=ids).logits[0].log_softmax(-1)
        marks = [small[key] for key in stand_in_tokenizer.MARKS]
        others = [i for i in range(len(tokenizer)) if i not in marks]
        assert likely[:, marks].max() < likely[:, others].min() - LEAST


def test_a_file_of_transformers_5_is_read(tmp_path):
    """Where the text's sizes are in a section of their own."""
    want, tokenizer, _ = saved(tmp_path, True)
    config = transformers.AutoConfig.for_model(**configs()[NAME]).to_dict()
    small = miniature.shrunk(config, tokenizer)
    assert small["rope_parameters"]["mrope_section"] == [4, 6, 6]
    kept = ("hidden_size", "num_hidden_layers", "vocab_size", "model_type", "image_token_id")
    assert {k: small[k] for k in kept} == {k: want[k] for k in kept}


def test_each_row_that_stands_in_has_a_picture(tmp_path):
    rows = [{"problem": f"{i} + 1", "answer": str(i + 1)} for i in range(6)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = datasets.image_section(file)["download_dir"]
    assert datasets.image_section(file)["download_dir"] == folder
    table = pandas.read_parquet(f"{folder}/mmpr_tiny.parquet")
    paths = [images[0]["path"] for images in table["images"]]
    assert [x["question"] for x in table["extra_info"]] == [row["problem"] for row in rows]
    assert [x["ground_truth"] for x in table["reward_model"]] == [row["answer"] for row in rows]
    assert len(set(paths)) == 4
    assert {Image.open(f"{folder}/{path}").size for path in paths} == {(56, 56)}
