"""HFPolicy on disk: what it saves, and the errors of models and tokenizers that it cannot use."""

import json

import huggingface_hub
import pytest
import small_llama
import torch
import transformers
from small_llama import WORDS
from tqdm.auto import tqdm

from nemo_algos.engines.local.hf import HFPolicy, from_pretrained, load_model, load_tokenizer


def policy_of(folder):
    return HFPolicy(small_llama.section(folder), torch.device("cpu"))


def test_a_saved_model_has_the_same_logits_and_tokenizer(folder, tmp_path):
    policy = policy_of(folder)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.01)
    policy.save(str(tmp_path / "out"))
    again, ids = policy_of(tmp_path / "out"), torch.tensor([[5, 6, 30, 31, 14, 8]])
    logits, want, before = (p.model.eval()(ids).logits for p in (again, policy, policy_of(folder)))
    assert torch.equal(logits, want) and not torch.allclose(logits, before, atol=1e-2)
    chat = [{"role": "user", "content": "what is 3 + 4 ?"}]
    texts = [p.tokenizer.apply_chat_template(chat, tokenize=False) for p in (policy, again)]
    assert texts == ["user what is 3 + 4 ? "] * 2


@pytest.mark.parametrize(
    ("lacks", "message"), [("template", "chat_template: {folder}"), ("pad", "pad_token: {folder}")]
)
def test_a_tokenizer_without_template_or_pad_token(folder, tmp_path, lacks, message):
    lacking = small_llama.tokenizer(pad_token=None if lacks == "pad" else "<pad>")
    if lacks == "template":
        lacking.chat_template = None
    lacking.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"policy\.tokenizer") as error:
        load_tokenizer(small_llama.section(tmp_path))
    assert message.format(folder=tmp_path) in str(error.value) and "\n" not in str(error.value)
    given = {"chat_template": "{{ messages }}", "pad_token": "<unk>"}
    made = load_tokenizer(small_llama.section(tmp_path, tokenizer=given))
    assert made.chat_template == "{{ messages }}" and made.pad_token_id == WORDS.index("<unk>")
    named = load_tokenizer(small_llama.section(tmp_path, tokenizer={"name": str(folder)}))
    assert named.chat_template == small_llama.TEMPLATE and named.pad_token_id == WORDS.index(
        "<pad>"
    )


class Reader:
    """As transformers' reader of GGUF files, whose bar is tqdm's own."""

    @staticmethod
    def from_pretrained(folder, gguf_file, trust_remote_code):
        return [gguf_file for _ in tqdm([0])]


def test_no_bars_but_of_downloads(folder, tmp_path, capsys):
    (tmp_path / "x.gguf").touch()
    transformers.logging.enable_progress_bar()
    load_model(small_llama.section(folder))
    assert from_pretrained(Reader, "-", str(tmp_path / "x.gguf")) == ["x.gguf"]
    assert capsys.readouterr().err == ""
    assert not huggingface_hub.utils.are_progress_bars_disabled()


@pytest.mark.parametrize("name", ["nothing/here", "nothing/here.gguf", "empty"])
@pytest.mark.parametrize("load", [load_model, load_tokenizer])
def test_a_model_that_is_not_there(tmp_path, load, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"^policy\.model_name: cannot load ") as error:
        load(small_llama.section(tmp_path / name))
    assert str(tmp_path / name) in str(error.value) and "\n" not in str(error.value)


def test_a_tokenizer_of_its_own_that_is_not_there(folder, tmp_path):
    wanted = {"name": str(tmp_path / "nothing")}
    with pytest.raises(ValueError, match=r"^policy\.tokenizer\.name: cannot load .*/nothing: "):
        load_tokenizer(small_llama.section(folder, tokenizer=wanted))


def test_a_model_is_read_from_safetensors_only(tmp_path):
    """A .bin file is a pickle, which could run code."""
    folder = small_llama.save(tmp_path)
    model = load_model(small_llama.section(folder))
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"policy\.model_name: cannot load .*safetensors"):
        load_model(small_llama.section(folder))


@pytest.mark.parametrize("load", [load_model, load_tokenizer])
def test_code_that_a_model_brings_is_not_run_and_not_asked_about(tmp_path, load, monkeypatch):
    """A model type that transformers does not know, with code of its own for it."""
    folder = small_llama.save(tmp_path)
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    for name in ("config.json", "tokenizer_config.json"):
        plain = json.loads((folder / name).read_text())
        classes = {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}
        auto_map = classes | {"AutoTokenizer": ["mine.T", None]}
        changed = plain | {"model_type": "mine", "auto_map": auto_map, "tokenizer_class": "Mine"}
        (folder / name).write_text(json.dumps(changed))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked at the terminal"))
    with pytest.raises(ValueError, match=r"policy\.model_name: cannot load"):
        load(small_llama.section(folder))
    assert not (tmp_path / "ran").exists()
