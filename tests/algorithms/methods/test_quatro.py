"""QUATRO's loss s (A - sg log s), the pull-back of flat groups, capped prompts' radius."""

import pytest
import torch
from batches import close, make, run

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.loss_config import LossConfig


def log_s(batch, mean):
    """[B] the clamped sum (or mean) of the clamped token log-ratios, by a loop."""
    out = []
    for row, old, mask in zip(
        batch.logprobs, batch.rollouts.old_logprobs, batch.rollouts.mask, strict=True
    ):
        pairs = zip(row[mask], old[mask], strict=True)
        terms = [max(-20.0, min(20.0, float(a - b))) for a, b in pairs]
        total = sum(terms) / (max(len(terms), 1) if mean else 1)
        out.append(max(-20.0, min(20.0, total)))
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("ratio", ["sequence", "geometric_mean"])
def test_gradient_by_hand(ratio):
    """d loss / d l_it = -s_i (A_i - x_i) / N, over |o_i| for the mean."""
    batch = make(large=False)
    mask, lengths = batch.rollouts.mask, batch.rollouts.lengths
    method = {"name": "quatro", "ratio": ratio}
    A = build(method).signals(batch.rollouts).advantages[:, 0]
    x = log_s(batch, ratio == "geometric_mean")
    per_token = -x.exp() * (A - x) / (lengths > 0).sum()
    if ratio == "geometric_mean":
        per_token = per_token / lengths.clamp(min=1)
    want = per_token[:, None].expand(mask.shape).where(mask, 0.0)
    close(run(method, batch, LossConfig()).grad, want)


@pytest.mark.parametrize("ratio", ["sequence", "geometric_mean"])
def test_flat_group_pulls_back(ratio):
    batch = make(rewards=((1.0,) * 5,), spread=0.1, large=False)
    x, live = log_s(batch, ratio == "geometric_mean"), batch.rollouts.lengths > 0
    grad = run({"name": "quatro", "ratio": ratio}, batch, LossConfig()).grad
    toward = grad.where(batch.rollouts.mask, 0.0).sum(1)[live]
    assert (toward.sign() == x[live].sign()).all()
    weight = batch.rollouts.lengths if ratio == "sequence" else torch.ones(5)
    close(toward, (x.exp() * x / live.sum() * weight)[live])


def test_without_the_penalty_a_flat_group_is_silent():
    batch = make(rewards=((1.0,) * 5,), large=False)
    assert (run({"name": "quatro", "log_ratio_penalty": False}, batch).value != 0).all()  # the KL
    off = run({"name": "quatro", "log_ratio_penalty": False}, batch, LossConfig())
    assert off.value == 0 and (off.grad == 0).all()


def test_max_log_ratio_bounds_the_sum_and_the_penalty():
    batch = make(rewards=((1.0,) * 6,), spread=1.0, large=False)
    result = run({"name": "quatro", "max_log_ratio": 0.5}, batch, LossConfig())
    limited = log_s(batch, False).clamp(-0.5, 0.5)  # each token clamped below 0.5 first
    assert result.stats.summary()["ratio/clamped_sequences"] > 0.5
    beyond = limited.abs() == 0.5
    tokens = (batch.logprobs - batch.rollouts.old_logprobs).clamp(-0.5, 0.5)
    total = tokens.where(batch.rollouts.mask, 0.0).sum(1)
    x = total.clamp(-0.5, 0.5)
    close(result.value, float((x.exp() * x).sum() / (batch.rollouts.lengths > 0).sum()))
    assert beyond.any() and (result.grad[total.abs() > 0.5] == 0).all()


def test_metrics_count_capped_prompts():
    capped = (1.0,) * 15 + (0.0,)
    batch = make(rewards=(capped, (0.0, 1.0), (1.0, 1.0)))
    metrics = build({"name": "quatro", "delta": 0.1}).signals(batch.rollouts).metrics
    assert metrics["quatro/capped_share"] == pytest.approx(1 / 3)


def test_a_group_of_16_with_one_wrong():
    """15 of 16 right at delta 0.1 is capped, and the wrong one has A = -4.7."""
    batch = make(rewards=((1.0,) * 15 + (0.0,),))
    A = build({"name": "quatro", "delta": 0.1}).signals(batch.rollouts).advantages
    assert float(A[batch.rollouts.rewards == 0]) == pytest.approx(-4.7, abs=0.05)
