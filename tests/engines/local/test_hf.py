"""HFPolicy's log-probs and gradients are the model's, whatever the padding and precision."""

import json
import warnings
from collections import Counter

import huggingface_hub
import pytest
import small_llama
import torch
import transformers
from small_llama import WORDS
from torch.utils._python_dispatch import TorchDispatchMode
from tqdm.auto import tqdm

from nemo_algos.engines.local.hf import HFPolicy, from_pretrained, load_model, load_tokenizer
from nemo_algos.engines.local.prompt_sharing import micro_batches

EOS, STOP, PAD = (WORDS.index(w) for w in ("<eos>", "<stop>", "<pad>"))
PROMPTS = [[7, 20, 9], [5, 6, 30, 31, 14, 8, 11, 29, 4], [33], [10, 13, 21, 4, 25]]
G, TEMPERATURE = 6, 0.8


def policy_of(folder, **settings):
    return HFPolicy(small_llama.section(folder, **settings), torch.device("cpu"))


def drawn_by(policy, seed=0):
    return policy.generate(PROMPTS, G, torch.Generator().manual_seed(seed))


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def direct(policy, experience, row):
    """Log-probs and entropies of one response by a plain forward of its own, without padding."""
    prompt, response = PROMPTS[experience.group[row]], experience.responses()[row]
    logits = policy.model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    logp = (logits.double() / TEMPERATURE).log_softmax(-1)
    logprobs = logp.gather(1, torch.tensor(response)[:, None])[:, 0]
    return logprobs.float(), -(logp.exp() * logp).sum(1).float()


@pytest.mark.parametrize("generation_batch_size", [64, 24, 7, 1])
def test_generated_logprobs_and_entropy_are_the_models(folder, generation_batch_size):
    policy = policy_of(folder, generation_batch_size=generation_batch_size)
    drawn = drawn_by(policy)
    assert drawn.group.tolist() == [i for i in range(len(PROMPTS)) for _ in range(G)]
    assert torch.equal(drawn.gen_logprobs, drawn.logprobs)
    assert drawn.mask.shape == drawn.logprobs.shape == drawn.entropy.shape == drawn.tokens.shape
    for row in range(len(PROMPTS) * G):
        mask = drawn.mask[row]
        for got, want in zip(
            (drawn.logprobs, drawn.entropy), direct(policy, drawn, row), strict=True
        ):
            close(got[row][mask], want)
            assert not got[row][~mask].any()
    assert drawn.tokens[~drawn.mask].unique().tolist() == [PAD]
    shown = [p[m].tolist() for p, m in zip(drawn.prompts, drawn.prompt_mask, strict=True)]
    assert shown == PROMPTS and drawn.prompt_mask[:, -1].all()
    assert len(set(map(tuple, drawn.responses()))) > 20  # no two chunks draw the same


@pytest.mark.parametrize(
    "rows", [range(24), [23, 0, 11, 6], [8, 7], [13], [17, 17]], ids=lambda rows: len(rows)
)
def test_the_company_of_a_row_does_not_change_its_logprobs(folder, rows):
    policy = policy_of(folder)
    drawn = drawn_by(policy)
    got = policy.logprobs(drawn, torch.tensor(rows))
    assert got.shape == (len(rows), drawn.mask.shape[1]) and got.requires_grad
    for values, row in zip(got.detach(), rows, strict=True):
        close(values[drawn.mask[row]], direct(policy, drawn, row)[0])
        assert not values[~drawn.mask[row]].any()


def gradient(policy, drawn, batches):
    weights = torch.linspace(-1, 1, drawn.mask.numel()).view(drawn.mask.shape)
    policy.model.zero_grad()
    for rows in batches:
        (weights[rows] * policy.logprobs(drawn, rows)).sum().backward()
    return [p.grad.clone() for p in policy.model.parameters()]


def test_the_gradient_is_the_same_in_one_batch_and_row_by_row(folder):
    policy = policy_of(folder)
    drawn, every = drawn_by(policy), torch.arange(24)
    whole = gradient(policy, drawn, [every])
    for batches in (every.split(1), every.flip(0).split(5)):
        for got, want in zip(gradient(policy, drawn, batches), whole, strict=True):
            close(got / 24, want / 24)


@pytest.mark.parametrize("ends", [[EOS], [STOP], [STOP, EOS]])
def test_responses_end_at_the_models_and_the_tokenizers_end_tokens(tmp_path, ends):
    stop = ends if len(ends) > 1 else ends[0]
    policy = policy_of(
        small_llama.save(tmp_path, eos_token_id=stop, initializer_range=0.05),
        generation={"max_new_tokens": 60},
    )
    drawn = drawn_by(policy)
    all_ends, ended = {EOS, *ends}, set()
    for tokens, response in zip(drawn.tokens.tolist(), drawn.responses(), strict=True):
        assert not all_ends & set(response[:-1])
        assert response[-1] in all_ends or len(response) == 60
        assert set(tokens[len(response) :]) <= {PAD}
        ended |= all_ends & set(response)
    assert ended == all_ends and drawn.mask.shape[1] == max(map(len, drawn.responses()))


def test_dropout_is_off_and_recomputed_activations_give_the_same_gradient(tmp_path):
    small_llama.save(tmp_path, attention_dropout=0.5)
    calls, gradients = [], []
    for checkpointing in (False, True):
        policy = policy_of(tmp_path, dtensor_cfg={"activation_checkpointing": checkpointing})
        drawn = drawn_by(policy)
        close(policy.logprobs(drawn, torch.arange(24)).detach(), drawn.logprobs)
        count = []
        policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, c=count: c.append(1))
        gradients.append(gradient(policy, drawn, torch.arange(24).split(8)))
        calls.append(len(count))
    assert calls == [3, 6]
    for one, other in zip(*gradients, strict=True):
        close(one, other)


class Casts(TorchDispatchMode):
    """Counts how often each weight becomes bfloat16."""

    def __init__(self, model):
        super().__init__()
        self.names = {w.data_ptr(): name for name, w in model.named_parameters()}
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and kwargs.get("dtype") == torch.bfloat16:
            name = self.names.get(args[0].data_ptr())
            self.seen.update([name] if name else [])
        return func(*args, **(kwargs or {}))


def test_bfloat16_casts_a_weight_once_for_all_tokens_that_it_samples(folder):
    policy = policy_of(folder, precision="bfloat16")
    policy.rescores = False
    with Casts(policy.model) as casts:
        drawn = drawn_by(policy)
    assert drawn.tokens.shape[1] > 4
    assert len(casts.seen) > 7 and set(casts.seen.values()) == {1}


def test_bfloat16_keeps_float32_weights_and_rescores_the_draw(folder):
    policy = policy_of(folder, precision="bfloat16")
    drawn = drawn_by(policy)
    gap = (drawn.logprobs - drawn.gen_logprobs)[drawn.mask].abs()
    assert 1e-4 < gap.mean() < 0.1
    every = micro_batches(drawn, torch.arange(24), policy.config, 32)
    assert [len(rows) for rows in every] == [4] * 6
    for rows in every:  # the ratio is exactly 1 before the first update
        assert torch.equal(policy.logprobs(drawn, rows), drawn.logprobs[rows])
    policy.rescores = False  # with old_policy: sampler
    drawn = drawn_by(policy)
    assert torch.equal(drawn.logprobs, drawn.gen_logprobs)
    entropy = torch.cat([direct(policy, drawn, row)[1] for row in range(24)])
    torch.testing.assert_close(drawn.entropy[drawn.mask], entropy, rtol=0, atol=0.1)
    assert drawn.entropy.dtype == drawn.logprobs.dtype == torch.float32
    assert not drawn.logprobs[~drawn.mask].any() and not drawn.entropy[~drawn.mask].any()
    for grad, parameter in zip(
        gradient(policy, drawn, every), policy.model.parameters(), strict=True
    ):
        assert grad.dtype == parameter.dtype == torch.float32


def test_a_dynamic_batch_costs_the_forward_no_more_than_its_tokens(folder):
    policy = policy_of(folder, dynamic_batching={"enabled": True, "train_mb_tokens": 60})
    drawn, seen = drawn_by(policy), []
    forward = policy.model.forward
    policy.model.forward = lambda **kw: seen.append(kw["input_ids"].numel()) or forward(**kw)
    got = torch.zeros_like(drawn.logprobs)
    for rows in micro_batches(drawn, torch.arange(24), policy.config, 32):
        got[rows] = policy.logprobs(drawn, rows).detach()
    assert max(seen) <= 60 and len(seen) > 4
    close(got, drawn.logprobs)


def test_generation_uses_no_name_that_transformers_is_about_to_drop(folder):
    """It renamed the cache in 5.24, and drops the old name in 5.40."""
    policy = policy_of(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        drawn_by(policy)


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
