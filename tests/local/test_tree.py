"""Responses in trees: log-probs, entropies and gradients are those of each response alone."""

import pytest
import small_llama
import torch
import transformers
from small_llama import WORDS

from nemo_algos.local.experience import Experience
from nemo_algos.local.hf import HFPolicy

TEMPERATURE = 0.7
COMMON = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_embd": 32,
    "n_positions": 64,
    "state_size": 4,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": WORDS.index("<eos>"),
    "pad_token_id": WORDS.index("<pad>"),
}
MODELS = {  # the class, its sizes, and whether it takes trees
    "llama": ("Llama", {}, True),
    "qwen2": ("Qwen2", {}, True),
    "gpt2": ("GPT2", {}, True),
    "gemma2": ("Gemma2", {"query_pre_attn_scalar": 8}, True),  # eager, scores and logits capped
    "gemma2, window of 8": ("Gemma2", {"query_pre_attn_scalar": 8, "sliding_window": 8}, False),
    "mistral, window of 8": ("Mistral", {"sliding_window": 8}, False),
    "mixtral": ("Mixtral", {"num_local_experts": 4}, True),
    "bloom": ("Bloom", {}, False),  # its bias is of a two-way mask
    "mamba": ("Mamba", {}, False),
}


def experience():
    """Prompts of 3, 9 and 1 tokens; responses alike at first, one empty, one with a hole."""
    rng = torch.Generator().manual_seed(3)
    lengths, group = torch.tensor([3, 9, 1]), torch.arange(3).repeat_interleave(6)
    prompt_mask = torch.arange(9) >= 9 - lengths[:, None]
    prompts = torch.randint(4, len(WORDS), (3, 9), generator=rng).where(prompt_mask, 0)
    tokens = torch.randint(4, 7, (18, 6), generator=rng)
    mask = torch.arange(6) < torch.randint(1, 7, (18, 1), generator=rng)
    mask[4], mask[5], tokens[8] = False, torch.tensor([1, 1, 0, 0, 1, 0]).bool(), tokens[7]
    zeros = torch.zeros(mask.shape)
    return Experience(prompts, prompt_mask, group, tokens, mask, *[zeros] * 3)


@pytest.fixture(scope="module", params=MODELS)
def policy(request, tmp_path_factory):
    kind, sizes, takes = MODELS[request.param]
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**COMMON, **sizes})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    small_llama.tokenizer().save_pretrained(folder)
    generation = {"max_new_tokens": 6, "temperature": TEMPERATURE}
    made = HFPolicy(small_llama.section(folder, generation=generation), torch.device("cpu"))
    assert bool(made.tree_width(experience())) == takes
    return made


def plain(policy, of):
    """[B,S] log-probs and entropies, each response in a forward of its own."""
    logprobs, entropy = torch.zeros(of.mask.shape), torch.zeros(of.mask.shape)
    for row in of.mask.any(1).nonzero()[:, 0].tolist():
        prompt = of.prompts[of.group[row]][of.prompt_mask[of.group[row]]]
        n = int(of.mask[row].nonzero().max()) + 1
        ids = torch.cat((prompt, of.tokens[row, :n]))[None]
        logits = policy.model(ids).logits[0, len(prompt) - 1 : -1]
        logp = (logits / TEMPERATURE).log_softmax(-1)
        logprobs[row, :n] = logp.gather(1, of.tokens[row, :n, None])[:, 0]
        entropy[row, :n] = -(logp.exp() * logp).sum(1)
    return logprobs.where(of.mask, 0.0), entropy.where(of.mask, 0.0)


def gradients(policy, logprobs):
    weights = torch.linspace(-1, 1, logprobs.numel()).view(logprobs.shape)
    policy.model.zero_grad()
    (weights * logprobs).sum().backward()
    return [p.grad.clone() for p in policy.model.parameters()]


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("cut", [18, 7, 1])
def test_trees_are_exact(policy, cut):
    of = experience()
    logprobs, entropy = plain(policy, of)
    want = gradients(policy, logprobs)
    width = policy.tree_width(of)
    scored = [policy._score(of, rows, width) for rows in torch.arange(18).split(cut)]
    got, got_entropy = map(torch.cat, zip(*scored, strict=True))
    close(got.detach(), logprobs.detach())
    close(got_entropy.detach(), entropy.detach())
    for one, other in zip(gradients(policy, got), want, strict=True):
        close(one, other)
