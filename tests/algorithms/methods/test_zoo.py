"""What the numbers in tests/golden do not reach: windows, rounding, shares, moments, limits."""

import math
from dataclasses import replace

import pytest
import torch
from batches import Batch, change, close, make, run

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.groups import advantages as group_advantages
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.rollouts import Rollouts


def tokens(*log_ratios, rewards=(1.0, 0.0), old=-1.0):
    """Two responses, a right and a wrong one, of these log-ratios."""
    log_ratio = torch.tensor(log_ratios, dtype=torch.float64)
    mask = torch.ones(log_ratio.shape, dtype=torch.bool)
    before = torch.full_like(log_ratio, old)
    rollouts = Rollouts(torch.tensor([0, 0]), torch.tensor(rewards), mask, before)
    return Batch(rollouts, before + log_ratio)


def test_a_certain_token_stays_within_the_binary_kl():
    """Its probability is 1 before and, by rounding, above 1 after."""
    batch = tokens([1e-7, 0.0], [1e-7, 0.0], old=0.0)
    assert (run("dppo_kl", batch, LossConfig()).grad != 0).all()


def test_fipos_future_is_the_sum_over_any_number_of_windows_and_holes():
    """300 tokens and holes, against the double sum."""
    rng = torch.Generator().manual_seed(0)
    log_ratio = 0.05 * torch.randn(2, 300, generator=rng, dtype=torch.float64)
    mask = torch.rand(2, 300, generator=rng) < 0.8
    algorithm = build({"name": "fipo", "low": 0.0, "high": 9.0, "safety": 100.0})
    rollouts = replace(tokens(*[[0.0] * 300] * 2).rollouts, mask=mask)
    signals, l = algorithm.signals(rollouts), log_ratio.where(mask, 0.0)  # noqa: E741
    got = algorithm.transform(l, mask, signals).advantages / signals.advantages
    for i in range(2):
        places = mask[i].nonzero()[:, 0]
        n = torch.arange(len(places))
        decay = 0.5 ** ((n[None] - n[:, None]) / 32).double()
        want = (decay.triu() @ l[i, places]).exp()
        close(got[i, places], want)


def test_a_token_at_the_quantile_of_the_entropies_is_kept():
    """Of six entropies the 0.8 quantile is the second largest, which is not above itself."""
    entropy = torch.tensor([[0.1, 0.9, 0.5], [0.7, 0.3, 0.2]], dtype=torch.float64)
    batch = tokens([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    rollouts = replace(batch.rollouts, entropy=entropy)
    got = build("high_entropy").signals(rollouts).advantages
    assert (got != 0).tolist() == [[False, True, False], [True, False, False]]


def test_without_its_penalty_quatro_is_silent_in_a_flat_group():
    batch = make(rewards=((1.0,) * 5,), large=False)
    assert (run({"name": "quatro", "log_ratio_penalty": False}, batch).value != 0).all()  # the KL
    off = run({"name": "quatro", "log_ratio_penalty": False}, batch, LossConfig())
    assert off.value == 0 and (off.grad == 0).all()


def test_quatro_counts_capped_prompts():
    capped = (1.0,) * 15 + (0.0,)
    batch = make(rewards=(capped, (0.0, 1.0), (1.0, 1.0)))
    metrics = build({"name": "quatro", "delta": 0.1}).signals(batch.rollouts).metrics
    assert metrics["quatro/capped_share"] == pytest.approx(1 / 3)


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


NAN = float("nan")


def advantages(batch, **params):
    return build({"name": "erpo", **params}).signals(batch.rollouts).advantages


def moments(values, mask):
    tokens = values[mask]
    return float(tokens.sum()), float(tokens.var(correction=0))


@pytest.mark.parametrize(("dtype", "slack"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_each_group_sums_to_0_with_variance_1(dtype, slack):
    batch = make(seed=1, positions=30, dtype=dtype)
    A, group = advantages(batch), batch.rollouts.group
    raw = group_advantages(batch.rollouts.rewards, batch.rollouts.groups)
    for label in (-3, 18, 25):  # groups with a signal
        rows = group == label
        total, variance = moments(A[rows], batch.rollouts.mask[rows])
        std = float(raw[rows].std(correction=0))  # of the order of the std before the z
        assert abs(total) <= slack
        assert abs(variance - 1) <= 1e-5 + 3e-6 / std


def test_progress_that_is_only_noise_warns():
    batch = make()
    noise = batch.rollouts.old_logprobs + 1e-5 * torch.randn(batch.rollouts.mask.shape)
    with pytest.warns(RuntimeWarning, match=r"pi_old .*pi_ref\b"):
        advantages(change(batch, ref_logprobs=noise.where(batch.rollouts.mask, NAN)))


@pytest.mark.parametrize("missing", ["ref_logprobs", "entropy"])
def test_missing_inputs_are_named(missing):
    with pytest.raises(ValueError, match=rf"^erpo .*\b{missing} \[B, S\]"):
        advantages(change(make(), **{missing: None}))


def one_kind_of_response(seed: int, dtype: torch.dtype) -> tuple[Rollouts, torch.Tensor]:
    """A group whose responses with tokens all have one reward: wrong ones were masked out.

    And a log pi_ref that is off by a constant, and equal entropies.
    """
    rng = torch.Generator().manual_seed(seed)
    right, wrong, positions = (
        int(torch.randint(low, high, (), generator=rng))
        for low, high in ((1, 9), (1, 5), (20, 400))
    )
    rows = right + wrong
    lengths = torch.randint(1, positions + 1, (rows, 1), generator=rng)
    mask = torch.arange(positions) < lengths
    mask[right:] = False
    old = -torch.rand(rows, positions, generator=rng).to(dtype)
    rewards = torch.tensor([1.0] * right + [0.0] * wrong)
    entropy = torch.rand(rows, positions, generator=rng).to(dtype)
    return Rollouts(torch.zeros(rows).long(), rewards, mask, old, old.clone(), entropy), old


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("why", ["old == ref", "process_weight 0"])
def test_where_nothing_varies_advantages_are_exactly_0(why, dtype):
    for seed in range(150):
        rollouts, old = one_kind_of_response(seed, dtype)
        params = {}
        if why == "process_weight 0":
            params = {"process_weight": 0.0}
            rollouts = replace(rollouts, ref_logprobs=old.roll(1, 1))
        signals = build({"name": "erpo", **params}).signals(rollouts)
        assert (signals.advantages == 0).all(), seed


def test_a_constant_distance_to_the_reference_is_no_process_signal():
    """Log-probs on a grid, so that their differences are exact."""
    for seed in range(50):
        rollouts, old = one_kind_of_response(seed, torch.float32)
        old = (old * 64).round() / 64
        shifted = replace(rollouts, old_logprobs=old, ref_logprobs=old - 0.375)
        signals = build("erpo").signals(shifted)
        assert signals.metrics["erpo/process_signal"] == 0
        assert (signals.advantages == 0).all()


def test_equal_entropies_open_every_gate_halfway():
    """The gate's z-score is 0: sigmoid(0)."""
    for seed in range(50):
        rollouts, old = one_kind_of_response(seed, torch.float32)
        rollouts = replace(rollouts, entropy=torch.full_like(old, 2.3), ref_logprobs=old.roll(1, 1))
        metrics = build("erpo").signals(rollouts).metrics
        assert metrics["erpo/gate"] == 0.5 and metrics["erpo/gate_open_share"] == 0
