"""Entropies against log_softmax by autograd: whole, in chunks, in shards of the vocabulary."""

import math
from types import SimpleNamespace

import pytest
import torch

from nemo_algos.algorithms.core import entropy, linear_entropy

N, V = 7, 11


def direct(logits, tokens, temperature):
    logp = (logits / temperature).log_softmax(-1)
    return logp.gather(-1, tokens[..., None])[..., 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("rows_per_chunk", [1, 3, N])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_equals_log_softmax_with_gradients(monkeypatch, rows_per_chunk, temperature):
    monkeypatch.setattr(entropy, "CACHED", rows_per_chunk * V)
    torch.manual_seed(0)
    logits = (3 * torch.randn(N, 1, V, dtype=torch.float64)).requires_grad_()
    tokens, weights = torch.randint(V, (N, 1)), torch.randn(2, N, 1, dtype=torch.float64)
    grads = []
    for f in (direct, entropy.token_logprobs_and_entropy):
        logprobs, h = f(logits, tokens, temperature)
        (grad,) = torch.autograd.grad((weights[0] * logprobs + weights[1] * h).sum(), logits)
        grads.append((logprobs, h, grad))
    for want, got in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)


def test_bf16_logits_are_summed_in_float32():
    torch.manual_seed(2)
    logits = torch.randn(3, 50_000).bfloat16().requires_grad_()
    tokens = torch.randint(50_000, (3,))
    got = entropy.token_logprobs_and_entropy(logits, tokens)
    want = direct(logits.detach().double(), tokens, 1.0)
    for x, y in zip(got, want, strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x.double(), y, rtol=0, atol=1e-5)
    got[0].sum().backward()
    assert logits.grad is not None and logits.grad.dtype == torch.bfloat16


def test_excluded_tokens_have_no_part():
    # two tokens excluded by -inf: uniform over the other two
    logits = torch.tensor([[0.0, -math.inf, 0.0, -math.inf]], requires_grad=True)
    logprob, h = entropy.token_logprobs_and_entropy(logits, torch.tensor([0]))
    (grad,) = torch.autograd.grad(logprob.sum() + h.sum(), logits)
    assert h.item() == pytest.approx(math.log(2))
    assert grad.tolist() == [[0.5, 0.0, -0.5, 0.0]]


def test_what_cannot_be_a_number_is_none():
    # a token excluded by -inf, one beyond the vocabulary, a NaN among the logits
    logits = torch.tensor([[0.0, -math.inf, 9.0], [0.0, 1.0, 9.0], [math.nan, 1.0, 9.0]])
    logprobs, h = entropy.token_logprobs_and_entropy(logits, torch.tensor([1, 2, 1]), vocabulary=2)
    assert logprobs[:2].tolist() == [-math.inf, -math.inf]
    assert logprobs[2].isnan() and h[2].isnan() and h[:2].isfinite().all()


def test_padded_rows_of_the_vocabulary_take_no_part():
    torch.manual_seed(3)
    logits, tokens = torch.randn(N, V, requires_grad=True), torch.randint(V - 3, (N,))
    got = entropy.token_logprobs_and_entropy(logits, tokens, 0.7, vocabulary=V - 3)
    want = direct(logits[:, : V - 3], tokens, 0.7)
    grads = [torch.autograd.grad((a + 2 * b).sum(), logits)[0] for a, b in (got, want)]
    for x, y in zip((*got, grads[0]), (*want, grads[1]), strict=True):
        torch.testing.assert_close(x, y)
    assert (grads[0][:, V - 3 :] == 0).all()


@pytest.mark.parametrize("vocabulary", [0, V + 1])
def test_a_vocabulary_that_the_logits_do_not_hold(vocabulary):
    with pytest.raises(ValueError, match=rf"vocabulary={vocabulary}\b.*\b11\b"):
        entropy.token_logprobs_and_entropy(
            torch.zeros(1, V), torch.zeros(1).long(), vocabulary=vocabulary
        )


@pytest.mark.parametrize("vocabulary", [12, 10, 4])
def test_shards_together_are_the_whole(monkeypatch, vocabulary):
    """Three ranks in turn, the collective played by a list; the last has padding only."""
    torch.manual_seed(4)
    logits, tokens = 3 * torch.randn(N, 12).double(), torch.randint(vocabulary, (N,))
    weights, ranks = torch.randn(2, N).double(), logits.split(4, dim=1)
    shards = [
        entropy.Shard("group", start, min(max(vocabulary - start, 0), 4)) for start in (0, 4, 8)
    ]
    own = [entropy.moments(x, tokens, 0.8, s) for x, s in zip(ranks, shards, strict=True)]

    def all_gather(parts, part, group):
        assert part.shape == parts[0].shape == (4, N)
        for out, moments in zip(parts, own, strict=True):
            out.copy_(torch.stack(moments))

    collectives = SimpleNamespace(get_world_size=lambda _: 3, all_gather=all_gather)
    monkeypatch.setattr(entropy, "dist", collectives)
    results = [entropy.over_vocabulary(m, s) for m, s in zip(own, shards, strict=True)]
    whole = logits[:, :vocabulary].clone().requires_grad_()
    logprobs, h = direct(whole, tokens, 0.8)
    (grad,) = torch.autograd.grad((weights[0] * logprobs + weights[1] * h).sum(), whole)
    parts = [
        entropy.logits_gradient(x, tokens, 0.8, s, r, weights[0], weights[1])
        for x, s, r in zip(ranks, shards, results, strict=True)
    ]
    torch.testing.assert_close(torch.cat(parts, 1)[:, :vocabulary], grad)
    for result in results:
        torch.testing.assert_close(result.logprobs, logprobs.detach())
        torch.testing.assert_close(result.entropy, h.detach())


@pytest.mark.parametrize("rows_per_chunk", [2, 100])
def test_from_hidden_states_equals_from_logits(monkeypatch, rows_per_chunk):
    monkeypatch.setattr(linear_entropy, "CHUNK", rows_per_chunk * V)
    torch.manual_seed(5)
    hidden = torch.randn(2, N, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, 5, dtype=torch.float64, requires_grad=True)
    tokens, factors = torch.randint(V - 1, (2, N)), torch.randn(2, 2, N).double()
    from_hidden = linear_entropy.token_logprobs_and_entropy_from_hidden
    got = from_hidden(hidden, weight, tokens, 0.8, vocabulary=V - 1)
    want = direct((hidden @ weight.T)[..., : V - 1], tokens, 0.8)
    for pair in zip(got, want, strict=True):
        torch.testing.assert_close(*pair)
    grads = [
        torch.autograd.grad((factors[0] * a + factors[1] * b).sum(), (hidden, weight))
        for a, b in (got, want)
    ]
    for pair in zip(*grads, strict=True):
        torch.testing.assert_close(*pair)


def test_a_shard_of_padding_alone_has_no_moments():
    shard = entropy.Shard(start=60, real=0, group=None)
    logits = torch.randn(2, 8, dtype=torch.float64)
    found = entropy.moments(logits, torch.tensor([3, 59]), 1.0, shard)
    nothing = (entropy.LOWEST, 0.0, 0.0, -math.inf)
    assert [values.tolist() for values in found] == [[value] * 2 for value in nothing]
