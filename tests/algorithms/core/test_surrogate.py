"""The surrogate where the golden numbers do not reach: open bounds, clamps, precision, the KLs."""

import math

import pytest
import torch
from batches import close

from nemo_algos.algorithms.core import kl
from nemo_algos.algorithms.core.surrogate import clipped_surrogate, difference

NAN, INF = float("nan"), float("inf")
ON = torch.ones(1, 4, dtype=torch.bool)


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def with_grad(function, values, dtype=torch.float64):
    """function's values and d sum / d input."""
    x = tensor(values, dtype).requires_grad_()
    out = function(x)
    out.sum().backward()
    return out.detach(), x.grad


# ---- the clipped surrogate


@pytest.mark.parametrize("low", [INF, 1.0, 1.5])
def test_no_lower_bound(low):
    got, grad = with_grad(
        lambda x: clipped_surrogate(x, tensor([[-1.0, -1.0]]), low, INF, 3.0), [[-20.0, 2.0]]
    )
    close(got, tensor([[-math.exp(-20), -3.0]]))
    close(grad, tensor([[-math.exp(-20), 0.0]]))


# ---- log-ratios


def test_difference_selects_before_it_subtracts():
    mask = torch.tensor([[True, False, False, False]])
    x = tensor([[1.0, NAN, INF, -INF]]).requires_grad_()
    out = difference(x, tensor([[0.5, NAN, INF, 3.0]]), mask, 20.0)
    out.sum().backward()
    assert out.tolist() == [[0.5, 0, 0, 0]]
    assert x.grad.tolist() == [[1, 0, 0, 0]]


def test_gradient_of_difference_at_and_beyond_the_clamp():
    out, grad = with_grad(
        lambda x: difference(x, torch.zeros_like(x), ON, 20.0), [[20.0, 20.001, -20.0, -1e4]]
    )
    assert out.tolist() == [[20, 20, -20, -20]]
    assert grad.tolist() == [[1, 0, 1, 0]]


def test_half_precision_is_subtracted_in_float32():
    a, b = (torch.tensor([[v] * 4], dtype=torch.bfloat16) for v in (-1.0, -1.0078125))
    out = difference(a, b, ON, 20.0)
    assert out.dtype == torch.float32
    assert out.tolist() == [[0.0078125] * 4]


# ---- KL


@pytest.mark.parametrize(("kind", "exact"), [("unbiased", True), ("k3", False)])
def test_the_mean_over_the_old_policys_tokens_has_the_gradient_of_the_kl(kind, exact):
    """All tokens of a vocabulary, weighed as the old policy draws them; pi_theta has moved."""
    logits, old, ref = torch.randn(3, 7, generator=torch.Generator().manual_seed(0)).double()
    logits = logits.requires_grad_()
    now, mu, base = logits.log_softmax(0), old.log_softmax(0), ref.log_softmax(0)
    divergence = (now.exp() * (now - base)).sum()
    (want,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    rows = [x[:, None] for x in (now, base, torch.ones(7, dtype=torch.bool), now - mu)]
    mean = (mu.exp()[:, None] * kl.estimate(*rows[:3], kind, rows[3])).sum()
    (got,) = torch.autograd.grad(mean, logits)
    assert torch.allclose(got, want, atol=1e-12) == exact
    assert torch.allclose(mean, divergence, atol=1e-12) == exact


def test_kl_is_clamped_at_20():
    out, grad = with_grad(
        lambda x: kl.estimate(x, torch.zeros_like(x), ON), [[-1e4, 1e4, -20.0, 20.0]], torch.float32
    )
    high, low = math.exp(20) - 21, math.exp(-20) + 19
    close(out, tensor([[high, low, high, low]], torch.float32), 1e-6)
    close(grad, tensor([[0, 0, 1 - math.exp(20), 1 - math.exp(-20)]], torch.float32), 1e-6)


def test_k3_of_tiny_gaps_is_not_rounded_away():
    out = kl.estimate(tensor([[1e-7] * 4]), tensor([[0.0] * 4]), ON)
    assert out[0, 0].item() == pytest.approx(5e-15, rel=1e-6)


# ---- reductions
