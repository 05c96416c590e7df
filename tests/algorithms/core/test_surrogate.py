"""The surrogate: gradients, KL estimators, off-policy weights, reductions."""

import math

import pytest
import torch
from batches import close

from nemo_algos.algorithms.core import kl
from nemo_algos.algorithms.core.surrogate import (
    Counts,
    clipped_surrogate,
    difference,
    one_sided_clip,
    reduce,
    sequence_mean,
    sequence_sum,
)

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

# ratio, advantage, value, gradient in log r, with bounds [0.8, 1.3]
CLIPPING = [
    (1.0, 2.0, 2.0, 2.0),
    (1.2, 2.0, 2.4, 2.4),
    (1.5, 2.0, 2.6, 0.0),  # gains no more above
    (0.5, 2.0, 1.0, 1.0),  # may come back from below
    (1.5, -2.0, -3.0, -3.0),  # may come back from above
    (0.5, -2.0, -1.6, 0.0),  # falls no more below
    (1.5, 0.0, 0.0, 0.0),
    (0.5, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize(("ratio", "advantage", "value", "grad"), CLIPPING)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_clipped_surrogate_by_hand(ratio, advantage, value, grad, as_tensor):
    low, high = (tensor([[b]]) if as_tensor else b for b in (0.2, 0.3))
    got = with_grad(
        lambda x: clipped_surrogate(x, tensor([[advantage]]), low, high), [[math.log(ratio)]]
    )
    close(got[0], value)
    close(got[1], grad)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_gradient_passes_at_a_bound(advantage):
    _, grad = with_grad(lambda x: clipped_surrogate(x, tensor([[advantage]]), 0.0, 0.0), [[0.0]])
    assert grad.item() == advantage


@pytest.mark.parametrize(("jump", "advantage"), [(1e-9, 1.0), (-1e-9, -1.0)])
def test_no_gradient_just_beyond_a_bound(jump, advantage):
    _, grad = with_grad(lambda x: clipped_surrogate(x, tensor([[advantage]]), 0.0, 0.0), [[jump]])
    assert grad.item() == 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "grad"),
    [
        (5.0, -2.0, -6.0, 0.0),
        (2.5, -2.0, -5.0, -5.0),
        (0.5, -2.0, -1.6, 0.0),
        (5.0, 2.0, 2.6, 0.0),
    ],
)
def test_dual_clip_cuts_negative_advantages_at_c(ratio, advantage, value, grad):
    got = with_grad(
        lambda x: clipped_surrogate(x, tensor([[advantage]]), 0.2, 0.3, 3.0), [[math.log(ratio)]]
    )
    close(got[0], value)
    close(got[1], grad)


@pytest.mark.parametrize("low", [INF, 1.0, 1.5])
def test_no_lower_bound(low):
    got, grad = with_grad(
        lambda x: clipped_surrogate(x, tensor([[-1.0, -1.0]]), low, INF, 3.0), [[-20.0, 2.0]]
    )
    close(got, tensor([[-math.exp(-20), -3.0]]))
    close(grad, tensor([[-math.exp(-20), 0.0]]))


def test_bounds_and_advantages_broadcast_over_tokens():
    x, A = tensor([[0.5, -0.5], [0.5, -0.5]]), tensor([[1.0], [-1.0]])
    got = one_sided_clip(x, A, tensor([[0.1], [0.2]]), tensor([[0.1], [0.2]]))
    close(got, tensor([[math.log(1.1), -0.5], [0.5, math.log(0.8)]]))


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


def test_sums_and_means_of_a_row():
    values, mask = tensor([[15.0, 0.0, 15.0], [0.0, 0.0, 0.0]]), torch.tensor([[1, 0, 1], [0] * 3])
    assert sequence_sum(values, 20.0).tolist() == [[20], [0]]
    assert sequence_sum(-values, 20.0).tolist() == [[-20], [0]]
    assert sequence_mean(values, mask.bool()).tolist() == [[15], [0]]
    _, grad = with_grad(lambda x: sequence_sum(x, 20.0), [[15.0, 0.0, 15.0], [5.0, 5.0, 10.0]])
    assert grad.tolist() == [[0, 0, 0], [1, 1, 1]]


# ---- KL


@pytest.mark.parametrize(
    ("kind", "value", "slope"),
    [("k1", -0.5, 1.0), ("k2", 0.125, -0.5), ("k3", math.exp(0.5) - 1.5, 1 - math.exp(0.5))],
)
def test_kl_estimators_by_hand(kind, value, slope):
    """ref - lp = 0.5; the slope is in lp."""
    mask = torch.tensor([[True, False]])
    x = tensor([[-1.5, NAN]]).requires_grad_()
    out = kl.estimate(x, tensor([[-1.0, INF]]), mask, kind)
    out.sum().backward()
    close(out.detach(), tensor([[value, 0.0]]))
    close(x.grad, tensor([[slope, 0.0]]))


def test_unbiased_kl_by_hand():
    """r = 2: the value is r k3, and the slope r k3 + r (1 - e^d)."""
    x, old = tensor([[-1.5]]).requires_grad_(), tensor([[-1.5 - math.log(2)]])
    mask = torch.tensor([[True]])
    out = kl.estimate(x, tensor([[-1.0]]), mask, "unbiased", x - old)
    out.sum().backward()
    k3 = math.exp(0.5) - 1.5
    close(out.detach(), tensor([[2 * k3]]))
    close(x.grad, tensor([[2 * k3 + 2 * (1 - math.exp(0.5))]]))


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


def test_means_by_hand():
    terms = tensor([[1.0, 2.0, 100.0], [5.0, 100.0, 100.0], [100.0] * 3])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
    counts = Counts.of(mask)
    assert counts == Counts(2, 3)
    assert reduce(terms, mask, "token", counts).item() == pytest.approx(8 / 3)
    assert reduce(terms, mask, "sequence", counts).item() == pytest.approx((1.5 + 5) / 2)


def test_one_value_per_sequence_counts_at_each_of_its_tokens():
    terms, mask = tensor([[1.0], [5.0], [7.0]]), torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    wide, counts = terms.expand(3, 3).clone(), Counts.of(mask)
    for mean in ("token", "sequence"):
        want = reduce(wide, mask.bool(), mean, counts)
        close(reduce(terms, mask.bool(), mean, counts), want)


def test_counts_of_the_whole_batch_divide_a_part():
    terms, mask = tensor([[1.0, 2.0], [3.0, 4.0]]), torch.ones(2, 2, dtype=torch.bool)
    counts = Counts.of(mask) + Counts(6, 96)
    assert reduce(terms, mask, "token", counts).item() == pytest.approx(0.1)
    assert reduce(terms, mask, "sequence", counts).item() == pytest.approx(5 / 8)
