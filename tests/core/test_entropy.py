"""core.entropy against log_softmax by autograd, in chunks of one row and at once."""

import math

import pytest
import torch

from nemo_algos.core import entropy

N, V = 7, 11


def direct(logits, tokens, temperature):
    logp = (logits / temperature).log_softmax(-1)
    return logp.gather(-1, tokens[..., None])[..., 0], -(logp.exp() * logp).sum(-1)


def test_by_hand():
    # p = (1/2, 1/4, 1/4): H = 1.5 log 2
    logits = torch.tensor([[math.log(2.0), 0.0, 0.0]])
    logprob, h = entropy.token_logprobs_and_entropy(logits, torch.tensor([1]))
    assert logprob.item() == pytest.approx(-math.log(4))
    assert h.item() == pytest.approx(1.5 * math.log(2))


@pytest.mark.parametrize("rows_per_chunk", [1, 3, N])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_equals_log_softmax_with_gradients(monkeypatch, rows_per_chunk, temperature):
    monkeypatch.setattr(entropy, "CHUNK", rows_per_chunk * V)
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


@pytest.mark.parametrize("which", [0, 1])
def test_gradient_of_one_output_alone(which):
    torch.manual_seed(1)
    logits, tokens = torch.randn(N, V, requires_grad=True), torch.randint(V, (N,))
    got, want = (
        torch.autograd.grad(f(logits, tokens, 1.0)[which].sum(), logits)[0]
        for f in (entropy.token_logprobs_and_entropy, direct)
    )
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


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
