"""Responses in trees: log-probs, entropies and gradients are those of each response alone."""

from dataclasses import replace

import pytest
import small_llama
import torch
import transformers
from matrix import some_of
from small_llama import WORDS

from nemo_algos.engines.local.experience import Experience
from nemo_algos.engines.local.hf import HFPolicy
from nemo_algos.engines.local.prompt_sharing import budget, forest, micro_batches, trees
from nemo_algos.engines.local.sampling import pack, unpack

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
    mask[4], mask[5], tokens[8] = False, torch.arange(6) < 5, tokens[7]
    shown, zeros = mask.clone(), torch.zeros(mask.shape)
    mask[5, 2:4] = False
    return Experience(prompts, prompt_mask, group, tokens, mask, *[zeros] * 3, shown)


def policy(name, folder):
    kind, sizes, _ = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**COMMON, **sizes})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    small_llama.tokenizer().save_pretrained(folder)
    generation = {"max_new_tokens": 6, "temperature": TEMPERATURE}
    return HFPolicy(small_llama.section(folder, generation=generation), torch.device("cpu"))


@pytest.mark.parametrize("name", MODELS)
def test_which_models_take_trees(name, tmp_path):
    assert bool(policy(name, tmp_path).tree_width(experience())) == MODELS[name][2]


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
        if of.support is not None:
            sets = unpack(of.support[row, :n], len(WORDS))
            logprobs[row, :n] -= (logp.exp() * sets).sum(1).log()
        entropy[row, :n] = -(logp.exp() * logp).sum(1)
    return logprobs.where(of.mask, 0.0), entropy.where(of.mask, 0.0)


def gradients(policy, logprobs):
    weights = torch.linspace(-1, 1, logprobs.numel()).view(logprobs.shape)
    policy.model.zero_grad()
    (weights * logprobs).sum().backward()
    return [p.grad.clone() for p in policy.model.parameters()]


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)


def filtered(of):
    """With kept sets that follow from what a token follows, as a sampler's do."""
    words = torch.arange(len(WORDS))
    before = of.tokens.cumsum(1) - of.tokens + 5 * of.group[:, None]
    kept = ((words + before[..., None]) % 3 == 0) | ((words >= 4) & (words < 7))
    return replace(of, support=pack(kept & of.mask[..., None]))


@pytest.mark.parametrize("name", some_of(MODELS, 3))
def test_trees_are_exact(name, tmp_path):
    made = policy(name, tmp_path)
    of = experience()
    for rollouts, cuts in ((of, (18, 7, 1)), (filtered(of), (7,))):
        compare(made, rollouts, cuts)


def compare(made, of, cuts):
    """Micro-batches of so many rows, in trees, and each response alone."""
    logprobs, entropy = plain(made, of)
    want = gradients(made, logprobs)
    width = made.tree_width(of)
    for cut in cuts:
        scored = [made._score(of, rows, width) for rows in torch.arange(18).split(cut)]
        got, got_entropy = map(torch.cat, zip(*scored, strict=True))
        close(got.detach(), logprobs.detach())
        close(got_entropy.detach(), entropy.detach())
        for one, other in zip(gradients(made, got), want, strict=True):
            close(one, other)


def rows_of_text(grown):
    """Of each row of the model: its tokens, and for each the tokens that it sees."""
    out = []
    for ids, filled, sees in zip(grown.ids, grown.filled, grown.sees, strict=True):
        n = int(filled.sum())
        out.append([(int(ids[i]), ids[sees[i].nonzero()[:, 0]].tolist()) for i in range(n)])
    return out


def small(responses, prompts=((5, 6),), group=None):
    """An experience of these token ids, padded."""
    width, longest = max(map(len, responses)), max(map(len, prompts))
    mask = torch.tensor([[i < len(r) for i in range(width)] for r in responses])
    tokens = torch.tensor([[*r, *[0] * (width - len(r))] for r in responses])
    shown = torch.tensor([[i >= longest - len(p) for i in range(longest)] for p in prompts])
    ids = torch.tensor([[*[0] * (longest - len(p)), *p] for p in prompts])
    of = torch.tensor(group or [0] * len(responses))
    return Experience(ids, shown, of, tokens, mask, *[torch.zeros(mask.shape)] * 3)


def test_what_responses_begin_with_alike_is_there_once_and_last_tokens_are_not():
    of = small([[7, 8, 9], [7, 8, 3], [7, 4], [1]])
    grown = forest(of, torch.arange(4), torch.zeros(4, dtype=torch.long))
    assert rows_of_text(grown) == [[(5, [5]), (6, [5, 6]), (7, [5, 6, 7]), (8, [5, 6, 7, 8])]]
    assert grown.positions.tolist() == [[0, 1, 2, 3]]
    assert grown.tokens.tolist() == [1, 7, 4, 8, 3, 9]
    assert grown.column.tolist() == [1, 1, 2, 2, 3, 3]  # what each of these follows
    assert grown.place.tolist() == [[2, 4, 6], [2, 4, 5], [2, 3, 0], [1, 0, 0]]


def test_branches_and_prompts_do_not_see_one_another():
    of = small([[7, 8, 9], [4, 8, 3], [7, 8, 9]], [(5, 6), (2,)], [0, 0, 1])
    grown = forest(of, torch.arange(3), torch.tensor([0, 0, 1]))
    assert rows_of_text(grown) == [
        [
            *[(5, [5]), (6, [5, 6]), (4, [5, 6, 4]), (7, [5, 6, 7])],
            *[(8, [5, 6, 4, 8]), (8, [5, 6, 7, 8])],
        ],
        [(2, [2]), (7, [2, 7]), (8, [2, 7, 8])],
    ]
    assert grown.positions.tolist() == [[0, 1, 2, 2, 3, 3], [0, 1, 2, 0, 0, 0]]


def test_a_tree_is_as_large_as_is_cheapest():
    prompt, width, length = 100, 64, 10

    def cost(k):  # of a response where k share a tree: linear layers, attention
        return 6 * width * (prompt / k + length) + (prompt + k * length) ** 2 / k

    best = min(range(1, 200), key=cost)
    assert budget(prompt, width) // length == pytest.approx(best, abs=1)
    of = small([[7] * length] * 60, [tuple(range(4, 4 + 9)) * 11 + (4,)])
    tree = trees(of, torch.arange(60), small_llama.section("any"), width)
    assert tree.bincount().tolist() == [best, best, 60 - 2 * best]
    assert trees(of, torch.arange(60), small_llama.section("any"), 0).tolist() == list(range(60))


def test_a_tree_keeps_to_the_tokens_of_a_micro_batch():
    of, dynamic = small([[7] * 5] * 10, [(4, 5, 6, 7)]), {"enabled": True, "train_mb_tokens": 20}
    section = small_llama.section("any", dynamic_batching=dynamic)
    assert budget(4, 32) == 28  # a whole tree would have five responses
    assert trees(of, torch.arange(10), section, 32).bincount().tolist() == [3, 3, 3, 1]


@pytest.mark.parametrize("limit", [20, 40, 64, 150])
def test_dynamic_batches_of_trees_keep_to_their_tokens(limit):
    of, rows = experience(), torch.randperm(18, generator=torch.Generator().manual_seed(0))
    dynamic = {"enabled": True, "train_mb_tokens": limit}
    section = small_llama.section("any", dynamic_batching=dynamic)
    batches = micro_batches(of, rows, section, 32)
    assert sorted(torch.cat(batches).tolist()) == list(range(18))
    for batch in batches:
        assert forest(of, batch, trees(of, batch, section, 32)).ids.numel() <= limit
    alone = micro_batches(of, rows, section, 0)
    assert len(batches) < len(alone) or limit == 20


def test_generation_computes_a_beginning_once_and_no_finished_response(tmp_path):
    policy = HFPolicy(small_llama.section(small_llama.save(tmp_path)), torch.device("cpu"))
    fed, forward = [], policy.model.forward
    policy.model.forward = lambda **kw: fed.append(len(kw["input_ids"])) or forward(**kw)
    drawn = policy.generate([[7, 20, 9], [5, 6]], 30, torch.Generator().manual_seed(0))
    texts = [tuple(r) for r in drawn.responses()]
    begun = [
        {(g, t[:n]) for g, t in zip(drawn.group.tolist(), texts, strict=True) if len(t) > n}
        for n in range(1, 10)
    ]
    assert fed == [2, *map(len, filter(None, begun))]
    assert max(fed) < 60


def test_a_transformers_model_in_trees_scores_the_likeliest_too(tmp_path):
    section = small_llama.section(small_llama.save(tmp_path), generation={
        "max_new_tokens": 6, "temperature": 0.8, "top_logprobs": 5,
    })  # fmt: skip
    policy = HFPolicy(section, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    drawn = policy.generate([[4, 9, 12], [4, 10]], 6, generator)
    rows = torch.tensor([0, 1, 2, 5, 7, 11])
    logprobs, heads = policy.logprobs_and_heads(drawn, rows)
    assert heads.requires_grad
    mask = drawn.mask[rows]
    torch.testing.assert_close(logprobs[mask], policy.logprobs(drawn, rows)[mask])
    torch.testing.assert_close(heads[mask], drawn.likeliest_logprobs[rows][mask])  # on-policy
    for i, row in enumerate(rows.tolist()):
        prompt = drawn.prompts[drawn.group[row]][drawn.prompt_mask[drawn.group[row]]]
        answer = drawn.tokens[row][drawn.mask[row]]
        with torch.no_grad():
            logits = policy.model(torch.cat((prompt, answer))[None]).logits[0]
        scores = (logits[len(prompt) - 1 : -1] / 0.8).log_softmax(-1)
        top = scores.topk(5).values
        torch.testing.assert_close(heads[i, : len(answer)].detach(), top, rtol=0, atol=2e-5)
