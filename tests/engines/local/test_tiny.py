"""Tiny: three ways to the same logits, transformers' among them; and the warm start's cache."""

import random

import pytest
import torch

from nemo_algos.engines.data import countdown, puzzles
from nemo_algos.engines.local import tiny_policy
from nemo_algos.engines.local.schema import GenerationSection, Shape
from nemo_algos.engines.local.tiny import Tiny
from nemo_algos.engines.local.tiny_policy import TinyPolicy, token_logprobs, warm_start

P, L, G, S, V = 3, 6, 4, 40, 110  # responses outgrow the room of a cache


@pytest.fixture(scope="module")
def model():
    """A model in float64 with weights so large that attention attends and norms scale."""
    torch.manual_seed(0)
    model = Tiny(Shape()).double()
    for parameter in model.parameters():
        draw = torch.randn if parameter.dim() == 2 else torch.rand
        scale, shift = (0.3, 0.0) if parameter.dim() == 2 else (1.0, 0.5)
        parameter.data = shift + scale * draw(parameter.shape, dtype=torch.float64)
    return model


@pytest.fixture(scope="module")
def batch():
    """Prompts [P,L], their indices [B] in no order, responses [B,S]."""
    rng = torch.Generator().manual_seed(1)
    of = torch.arange(P).repeat(G)
    prompts, responses = (
        torch.randint(countdown.PAD, shape, generator=rng) for shape in ((P, L), (P * G, S))
    )
    responses[3], responses[6, :5] = responses[0], responses[0, :5]  # alike, and alike at first
    return prompts, of, responses


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def llama(model, tmp_path_factory):
    from transformers import LlamaForCausalLM

    folder = tmp_path_factory.mktemp("llama")
    TinyPolicy(model, GenerationSection(max_new_tokens=S)).save(str(folder))
    loaded, report = LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float64, output_loading_info=True
    )
    assert not any(report.values()), report
    return loaded.eval()


@torch.no_grad()
@pytest.mark.parametrize("shared", [True, False])
def test_steps_with_a_cache_give_the_logits_of_the_forward(model, batch, shared):
    prompts, of, responses = batch
    if not shared:  # every response a row of its own from the first token on
        prompts, of = prompts[of], torch.arange(len(of))
    (hidden, cache), row = model.prompt(prompts), of
    stepped, rows = [model.logits(hidden)[row]], [len(hidden)]
    for token in responses[:, :-1].T:
        prefixes, row = (row * V + token).unique(return_inverse=True)
        hidden, cache = model.step(prefixes % V, prefixes // V, cache)
        stepped.append(model.logits(hidden)[row])
        rows.append(len(hidden))
    assert rows == ([3, *[10] * 5, *[11] * (S - 6)] if shared else [12] * S)
    close(torch.stack(stepped, 1), model.response_logits(*batch))


def test_transformers_has_the_same_gradient(model, batch, llama):
    prompts, of, responses = batch
    weights = torch.randn(len(of), S, generator=torch.Generator().manual_seed(2))
    ids = torch.cat((prompts[of], responses), 1)
    for logits in (model.response_logits(*batch), llama(ids).logits[:, L - 1 : -1]):
        (weights * token_logprobs(logits, responses)).mean().backward()
    layers = zip(model.layers, llama.model.layers, strict=True)
    for mine, theirs in layers:
        close(mine.qkv.weight.grad[64:128], theirs.self_attn.k_proj.weight.grad)
        close(mine.gate_up.weight.grad[:192], theirs.mlp.gate_proj.weight.grad)
        close(mine.attention_norm.weight.grad, theirs.input_layernorm.weight.grad)
    close(model.embed.weight.grad, llama.model.embed_tokens.weight.grad)
    close(model.norm.weight.grad, llama.model.norm.weight.grad)


def gradients(model, prompts, of, responses):
    logits = model.response_logits(prompts, of, responses)
    weights = torch.linspace(-1, 2, S) * torch.arange(1, len(of) + 1)[:, None]
    loss = (weights * token_logprobs(logits, responses)).sum() / len(of)
    return logits.detach(), torch.autograd.grad(loss, list(model.parameters()))


def test_shared_prompts_equal_prompts_of_their_own(model, batch):
    prompts, of, responses = batch
    shared, shared_grad = gradients(model, *batch)
    own, own_grad = gradients(model, prompts[of], torch.arange(len(of)), responses)
    close(shared, own)
    for one, other in zip(shared_grad, own_grad, strict=True):
        close(one, other)


def test_a_token_does_not_see_later_ones(model, batch):
    prompts, of, responses = batch
    changed = responses.clone()
    changed[:, 5] = (changed[:, 5] + 1) % V
    one, other = (model.response_logits(prompts, of, r) for r in (responses, changed))
    assert torch.equal(one[:, :6], other[:, :6])
    assert ((one - other)[:, 6:].abs().amax(2) > 1e-3).all()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_generated_logprobs_are_those_of_any_rows(temperature):
    torch.manual_seed(0)
    model = Tiny(Shape())
    model.embed.weight.data *= 4  # probabilities far from equal
    policy = TinyPolicy(model, GenerationSection(max_new_tokens=S, temperature=temperature))
    asked = puzzles.held_out(5, countdown.Rules())
    prompts = [policy.encode(f"{p} :") for p in asked]
    generator = torch.Generator().manual_seed(3)
    drawn = policy.generate(prompts, G, generator)
    assert drawn.group.tolist() == [i for i in range(5) for _ in range(G)]
    assert drawn.prompts.tolist() == prompts and drawn.prompt_mask.all()
    for rows in (torch.arange(20), torch.tensor([13]), torch.tensor([19, 2, 7, 2])):
        mask = drawn.mask[rows]
        close(policy.logprobs(drawn, rows)[mask], drawn.logprobs[rows][mask])
    logits = model.response_logits(drawn.prompts, drawn.group, drawn.tokens) / temperature
    logp = logits.log_softmax(-1)
    close(drawn.entropy[drawn.mask], -(logp.exp() * logp).sum(-1)[drawn.mask])


def test_the_warm_start_lowers_the_loss_and_is_cached(monkeypatch, tmp_path):
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tiny_policy, "WARM_STEPS", 2)
    shares = []
    taught = warm_start(countdown.Rules(), 0, shares.append)
    assert shares == [0.5, 1.0]
    again = warm_start(countdown.Rules(), 0, shares.append)
    assert len(shares) == 2  # from the cache
    other = warm_start(countdown.Rules(), 1, shares.append)
    monkeypatch.setattr(tiny_policy, "WARM_STEPS", 20)
    longer = warm_start(countdown.Rules(), 0, lambda share: None)
    assert len(shares) == 4 and len(list((tmp_path / "cache").iterdir())) == 3

    def same(model):
        pairs = zip(taught.parameters(), model.parameters(), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    assert same(again) and not same(other) and not same(longer)
    assert nll(longer) < nll(taught) - 0.5


def test_each_shape_has_a_warm_start_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path))
    monkeypatch.setattr(tiny_policy, "WARM_STEPS", 1)
    for heads, layers in ((4, 2), (2, 2), (2, 1), (2, 2)):
        shape = Shape(heads=heads, layers=layers)
        model = warm_start(countdown.Rules(), 0, lambda share: None, shape)
        assert (model.shape, len(model.layers)) == (shape, layers)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(("width", "want"), [(32, 8e-5), (64, 8e-5), (256, 2e-5)])
def test_a_wider_model_is_taught_at_a_rate_lower_by_its_width(monkeypatch, tmp_path, width, want):
    """Adam's first step moves a parameter by the rate, of which the first is a fiftieth."""
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path))
    shape = Shape(width=width, heads=2, layers=1)
    torch.manual_seed(0)
    before = Tiny(shape)
    taught = warm_start(countdown.Rules(), 0, lambda share: None, shape, 1)
    pairs = zip(before.parameters(), taught.parameters(), strict=True)
    moved = max(float((a - b).detach().abs().max()) for a, b in pairs)
    assert moved == pytest.approx(want, rel=0.05)


def test_a_saved_model_speaks_through_transformers(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    policy = TinyPolicy(Tiny(Shape(heads=2)), GenerationSection(max_new_tokens=S))
    policy.model.embed.weight.data *= 4
    policy.save(str(tmp_path))
    tokenizer, model = (
        kind.from_pretrained(tmp_path) for kind in (AutoTokenizer, AutoModelForCausalLM)
    )
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (countdown.EOS, countdown.PAD)
    puzzle = puzzles.held_out(1, countdown.Rules())[0]
    message = [{"role": "user", "content": f"{puzzle} :"}]
    text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert prompt == policy.encode(f"{puzzle} :")
    drawn = policy.generate([prompt], 8, torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(torch.cat((drawn.prompts[drawn.group], drawn.tokens), 1)).logits[
            :, L - 1 : -1
        ]
    close(token_logprobs(logits, drawn.tokens)[drawn.mask], drawn.logprobs[drawn.mask])
    solved = puzzles.sample(random.Random(0), countdown.Rules())[1]
    for tokens in (*drawn.responses(), solved):
        said = tokenizer.decode(tokens, skip_special_tokens=True)
        assert said == policy.text([t for t in tokens if t != countdown.PAD])


def test_answers_of_several_lengths_teach_no_padding(monkeypatch, tmp_path):
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path))
    monkeypatch.setattr(tiny_policy, "WARM_STEPS", 20)
    seen = []
    original = tiny_policy.token_logprobs

    def watched(logits, tokens):
        logprobs = original(logits, tokens)
        logprobs.register_hook(lambda grad: seen.append((tokens, grad)))
        return logprobs

    monkeypatch.setattr(tiny_policy, "token_logprobs", watched)
    warm_start(countdown.Rules(3, use_all=False), 0, lambda share: None)
    padded = torch.stack([tokens == countdown.PAD for tokens, _ in seen])
    grads = torch.stack([grad for _, grad in seen])
    assert len(seen) == 20 and padded.any() and (grads[padded] == 0).all()
    taught = -1 / (~padded).sum((1, 2))
    assert all((g[~p] == t).all() for g, p, t in zip(grads, padded, taught, strict=True))


@torch.no_grad()
def nll(model):
    """The loss of worked solutions, nats per token."""
    import random

    pairs = [puzzles.sample(random.Random(i), countdown.Rules()) for i in range(50)]
    prompts = torch.tensor([countdown.tokens_of(f"{p} :")[:-1] for p, _ in pairs])
    tokens = torch.tensor([response for _, response in pairs])
    return -token_logprobs(model.response_logits(prompts, torch.arange(50), tokens), tokens).mean()
