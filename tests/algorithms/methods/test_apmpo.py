"""APMPO's limit, exponent and bounds, where its golden numbers do not reach."""

import math

import pytest
import torch
from batches import change, close, make, run

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.loss_config import LossConfig

NO_KL = LossConfig()


def method(p, batch):
    """APMPO whose exponent on this batch is p."""
    mu = float(batch.rollouts.rewards.mean())
    return {"name": "apmpo", "gamma": 1e9 if p == 0 else -math.log(p) / mu}


def test_an_exponent_near_0_has_the_limit_at_0():
    batch = make(large=False)
    algorithm = build(method(0, batch))
    assert (algorithm.signals(batch.rollouts).extras["exponent"] == 0).all()
    limit = run(method(0, batch), batch, NO_KL)
    near = run(method(1e-12, batch), batch, NO_KL)
    close(near.value, limit.value, 1e-11)
    close(near.grad, limit.grad, 1e-11)


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
