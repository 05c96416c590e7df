"""APMPO against its equation 9 by autograd; its limits, exponent and bounds."""

import math

import pytest
import torch
from batches import change, close, make, run

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.groups import advantages
from nemo_algos.algorithms.extensions.loss_config import LossConfig

NO_KL = LossConfig()


def direct(batch, p, low, high):
    """Loss and gradient of J_i = sgn(A_i) [ mean_t |min(r A, clip(r) A)|^p ]^(1/p)."""
    rollouts, mask = batch.rollouts, batch.rollouts.mask
    A = advantages(rollouts.rewards, rollouts.groups, "population")
    logprobs = batch.logprobs.clone().requires_grad_()
    J = []
    for i in range(len(rollouts)):
        if A[i] == 0 or not mask[i].any():
            continue
        l = logprobs[i][mask[i]] - rollouts.old_logprobs[i][mask[i]]  # noqa: E741
        r = l.clamp(-20, 20).exp()
        phi = torch.minimum(r * A[i], r.clamp(1 - low, 1 + high) * A[i]).abs()
        if p == 0:
            mean = phi.log().mean().exp()
        elif p < 1e-3:
            mean = (torch.expm1(p * phi.log()).mean().log1p() / p).exp()
        else:
            mean = phi.pow(p).mean().pow(1 / p)
        J.append(A[i].sign() * mean)
    loss = -torch.stack(J).sum() / (rollouts.lengths > 0).sum()
    loss.backward()
    return loss.detach(), logprobs.grad


def method(p, batch, **params):
    """APMPO whose exponent on this batch is p."""
    mu = float(batch.rollouts.rewards.mean())
    gamma = 1e9 if p == 0 else -math.log(p) / mu
    return {"name": "apmpo", "gamma": gamma, "clip_min": 0.3, "clip_max": 0.3, **params}


@pytest.mark.parametrize("p", [0, 1e-9, 1e-7, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.449, 0.9, 1.0])
@pytest.mark.parametrize("spread", [0.1, 1.0])
def test_gradient_is_that_of_equation_9(p, spread):
    batch = make(seed=3, spread=spread, large=False)
    result = run(method(p, batch), batch, NO_KL)
    value, grad = direct(batch, p, 0.2, 0.3)
    close(result.value, value)
    close(result.grad, grad)


@pytest.mark.parametrize("p", [0.1, 0.449, 0.9])
def test_gradient_is_that_of_equation_9_at_the_clamp(p):
    batch = make(seed=4)
    result = run(method(p, batch), batch, NO_KL)
    value, grad = direct(batch, p, 0.2, 0.3)
    close(result.value, value)
    close(result.grad, grad)


def test_exponent_1_with_equal_bounds_is_grpo():
    batch = make()
    grpo = {"name": "grpo", "advantage_std": "population", "clip_low": 0.2, "clip_high": 0.3}
    want, got = run(grpo, batch, NO_KL), run(method(1.0, batch), batch, NO_KL)
    close(got.value, want.value)
    close(got.grad, want.grad)


def test_exponent_0_is_the_geometric_mean():
    batch = make(large=False)
    algorithm = build(method(0, batch))
    assert (algorithm.signals(batch.rollouts).extras["exponent"] == 0).all()
    limit = run(method(0, batch), batch, NO_KL)
    close(run(method(1e-12, batch), batch, NO_KL).grad, limit.grad, 1e-11)
    value, grad = direct(batch, 0, 0.2, 0.3)
    close(limit.value, value)
    close(limit.grad, grad)


def signals(batch, **params):
    return build({"name": "apmpo", **params}).signals(batch.rollouts)


def test_exponent_and_bounds_by_hand():
    """Rewards 1, 0, 0, 0: mu = 1/4, sigma = sqrt(3)/4 (population), FSS = 1/sqrt(3)."""
    batch = make(rewards=((1.0, 0.0, 0.0, 0.0),))
    fss = 0.25 / (math.sqrt(3) / 4 + 1e-6)
    got = signals(batch)
    close(got.extras["exponent"], math.exp(-0.2))
    close(got.reports["clip_high"], 0.2 + 0.2 * math.tanh(fss))
    assert (got.low == 0.2).all() and (got.high[:, 0] == got.reports["clip_high"]).all()
    assert got.high[0].item() == pytest.approx(0.304147, abs=1e-6)
    close(signals(batch, exponent="linear").extras["exponent"], 0.8)
    mean = signals(batch, stability="mean")
    close(mean.high, 0.2 + 0.2 * math.tanh(0.25))
    inverse = signals(batch, stability="inverse_std", symmetric=True)
    close(inverse.high, 0.2 + 0.2 * math.tanh(1 / (math.sqrt(3) / 4 + 1e-6)))
    assert (inverse.low == inverse.high).all()


def test_statistics_of_the_group_or_of_the_batch():
    batch = make(rewards=((1.0, 0.0), (1.0, 1.0)))
    solved = batch.rollouts.group == 4
    by_group = signals(batch, statistics="group").extras["exponent"]
    close(by_group[solved], math.exp(-0.8))
    close(by_group[~solved], math.exp(-0.4))
    close(signals(batch).extras["exponent"], math.exp(-0.6))


@pytest.mark.parametrize("reward", [-1.0, 1.5])
def test_rewards_outside_0_1_are_refused(reward):
    batch = make()
    rewards = batch.rollouts.rewards.clone()
    rewards[5] = reward
    with pytest.raises(ValueError, match=rf"^apmpo .*\bsequence 5\b.* {reward:g}\b"):
        signals(change(batch, rewards=rewards))


@pytest.mark.parametrize(
    ("masked", "statistics", "mean"),
    [(False, "batch", 1 / 2), (True, "batch", 2 / 3), (True, "group", 1 / 2)],
)
def test_masked_rows_are_left_out_of_the_batch_and_empty_ones_are_not(masked, statistics, mean):
    """Right, wrong, wrong, right, one of the wrong ones without a token in `mask`."""
    batch = make(rewards=((1.0, 0.0, 0.0, 1.0),))
    row = int((batch.rollouts.rewards == 0).nonzero()[0])
    others = torch.arange(4) != row
    kept = others if masked else torch.ones_like(others)
    mask = batch.rollouts.mask & others[:, None]
    got = signals(change(batch, mask=mask, sample_mask=kept), statistics=statistics)
    close(got.extras["exponent"], math.exp(-0.8 * mean))
    assert got.metrics["rollouts/masked_share"] == masked / 4


def test_a_batch_that_is_masked_out_whole_has_finite_statistics():
    batch = make(rewards=((1.0, 0.0),))
    nothing = change(batch, sample_mask=torch.zeros(2, dtype=torch.bool))
    got = signals(nothing)
    assert got.extras["exponent"].isfinite().all() and got.metrics["rollouts/masked_share"] == 1
    assert "rollouts/masked_share" not in signals(batch).metrics
