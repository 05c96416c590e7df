"""Metrics on batches small enough to count by hand, and quantiles against torch's."""

import math

import pytest
import torch
from batches import change, make, on_policy, run

from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.golden.verify import GoldenRollouts

from batches import Batch  # isort: skip


def by_hand(log_ratios, advantages_of=(1.0, 0.0), mask=None):
    """Two sequences, one right and one wrong, with these log-ratios; old log-probs -1."""
    ratios = torch.tensor(log_ratios, dtype=torch.float64)
    mask = torch.ones(ratios.shape, dtype=torch.bool) if mask is None else mask
    old = torch.full_like(ratios, -1.0)
    rollouts = GoldenRollouts(
        torch.zeros(2, dtype=torch.long), torch.tensor(advantages_of), mask, old
    )
    return Batch(rollouts, old + ratios)


def summary(method, batch, config=None):
    return run(method, batch, config or LossConfig()).stats.summary()


# right: 2 above, 1 below of 4; wrong: 1 above, 2 below of 4 (bounds 0.8, 1.2)
MIXED = [[0.3, 0.5, -0.4, 0.1], [-0.3, -0.6, 0.4, -0.1]]


@pytest.mark.parametrize("name", ["grpo", "cispo", "etr"])
def test_clip_fractions_by_sign_and_side(name):
    method = {"name": name, **({"micro": 0, "macro": 0} if name == "etr" else {})}
    got = summary(method, by_hand(MIXED))
    assert got["clip/positive_above"] == 2 / 4
    assert got["clip/positive_below"] == 1 / 4
    assert got["clip/negative_above"] == 1 / 4
    assert got["clip/negative_below"] == 2 / 4
    assert got["clip/fraction"] == 4 / 8


def test_clip_fractions_of_gspo_are_those_of_sequences():
    got = summary("gspo", by_hand([[0.3, 0.5, 0.1, 0.3], [0.1, -0.1, 0.0, 0.0]]))
    assert got["clip/positive_above"] == 1
    assert got["clip/fraction"] == 1 / 2
    assert got["ratio/mean"] == pytest.approx((math.exp(0.3) + 1) / 2)


@pytest.mark.parametrize("log_ratio", [0.0, 0.3, 1.1314, -0.7])
def test_no_quantile_is_above_the_largest_ratio(log_ratio):
    """Where all ratios are alike it is theirs, and not its bin's upper edge."""
    got = summary("grpo", by_hand([[log_ratio] * 2] * 2))
    assert got["ratio/p99"] == got["ratio/max"] == pytest.approx(math.exp(log_ratio))


def test_sequences_without_advantage_are_not_counted_as_clipped():
    got = summary("grpo", by_hand(MIXED, (1.0, 1.0)))
    assert got["clip/fraction"] == 0
    assert not any(key.startswith(("clip/positive", "clip/negative")) for key in got)


def test_kl_to_old_and_sequences_by_hand():
    got = summary("grpo", by_hand([[0.5, -0.5], [0.1, 0.2]]))
    tokens = [math.expm1(x) - x for x in (0.5, -0.5, 0.1, 0.2)]
    assert got["kl/old"] == pytest.approx(sum(tokens) / 4)
    s = math.exp(0.3)  # row sums 0 and 0.3: E_old[s log s - s + 1] = KL(new || old)
    assert got["kl/old_sequence"] == pytest.approx((s * 0.3 - s + 1) / 2)


def test_a_sequence_s_log_ratio_is_cut_at_the_method_s_limit():
    """1.8 is cut at 1, where s log s - s + 1 is 1; the sum of the second is at the limit."""
    batch = by_hand([[0.9, 0.9], [0.5, 0.5]])
    got = summary({"name": "grpo", "max_log_ratio": 1.0}, batch)
    assert got["kl/old_sequence"] == pytest.approx(1)
    assert got["ratio/clamped_sequences"] == 1 and got["ratio/clamped_tokens"] == 0
    below = by_hand([[0.9, 0.9], [0.5, 0.499]])
    got = summary({"name": "grpo", "max_log_ratio": 1.0}, below)
    assert got["ratio/clamped_sequences"] == 0.5


def test_entropy_and_kl_to_the_reference_by_hand():
    batch = by_hand([[0.5, -0.5], [0.1, 0.2]])
    batch = change(batch, ref_logprobs=batch.logprobs + 0.3)
    got = summary("grpo", batch)
    assert got["kl/ref"] == pytest.approx(math.expm1(0.3) - 0.3)
    entropy = [-math.exp(x) * (x - 1) for x in (0.5, -0.5, 0.1, 0.2)]
    assert got["entropy/approximate"] == pytest.approx(sum(entropy) / 4)


def test_clamped_shares():
    got = summary("grpo", by_hand([[25.0, -1e4, 0.0, 0.0], [0.1, 0.0, 0.0, 0.0]]))
    assert got["ratio/clamped_tokens"] == 2 / 8
    assert got["ratio/clamped_sequences"] == 1 / 2
    assert got["ratio/max"] == pytest.approx(math.exp(20))
    assert (
        summary("quatro", by_hand([[15.0, 15.0], [0.0, 0.0]]))["ratio/clamped_sequences"] == 1 / 2
    )


@pytest.mark.parametrize("spread", [0.01, 0.3, 2.0])
def test_p99_is_within_1_percent_of_the_quantile(spread):
    batch = make(seed=1, positions=3000, spread=spread, large=False)
    got = summary("grpo", batch)
    mask = batch.rollouts.mask
    ratio = (batch.logprobs - batch.rollouts.old_logprobs)[mask].exp()
    want = float(torch.quantile(ratio, 0.99, interpolation="higher"))
    assert got["ratio/p99"] == pytest.approx(want, rel=0.01)
    assert got["ratio/p99"] >= want * (1 - 1e-6)  # the bin's upper edge
    assert got["ratio/max"] == pytest.approx(float(ratio.max()))
    assert got["ratio/mean"] == pytest.approx(float(ratio.mean()))


def test_sapos_gate_is_2_over_tau_on_policy():
    right, wrong = 2 / 1.0, 2 / 1.05
    got = summary("sapo", on_policy(by_hand([[0.0], [0.0]])))
    assert got["ratio/mean"] == pytest.approx((right + wrong) / 2)
