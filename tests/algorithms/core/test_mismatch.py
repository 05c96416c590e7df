"""The sampler's distance from the trainer, and what is rejected for it, by hand."""

import math

import pytest
import torch
from says import Says

from nemo_algos.algorithms.core.importance import (
    divergence,
    gap,
    importance,
    kept_tokens,
    length_ratio,
)
from nemo_algos.algorithms.core.logprob_gap import Monitor, measure, rise

NAN, INF = float("nan"), float("inf")


def of(gaps, threshold=0.5, masked=()):
    """Measured on log-probs that are `gaps` apart, and on `masked` off the mask."""
    old = torch.tensor([[-1.0 + g for g in (*gaps, *masked)]], dtype=torch.float64)
    mask = torch.tensor([[True] * len(gaps) + [False] * len(masked)])
    found = measure(old, torch.full_like(old, -1.0), mask, threshold)
    return {k.removeprefix("mismatch/"): v for k, v in found.items()}


def test_four_tokens_by_hand():
    got = of([0.1, -0.3, 0.6, -1.0])
    want = {"mean": 0.5, "p99": 1.0, "max": 1.0, "share_above": 0.5, "nonfinite": 0.0}
    assert got == pytest.approx(want)


@pytest.mark.parametrize(("tokens", "rank"), [(1, 1), (99, 99), (100, 99), (101, 100), (200, 198)])
def test_the_99th_percentile_is_the_smallest_with_99_of_100_below(tokens, rank):
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(0))
    gaps = [(i + 1) / 1000 for i in order.tolist()]
    assert of(gaps)["p99"] == pytest.approx(rank / 1000)


@pytest.mark.long
def test_of_17_million_tokens():
    """More than torch.quantile takes in older versions."""
    old = torch.arange(2**24 + 99, dtype=torch.float32)[None] / 2**25
    found = measure(old, torch.zeros_like(old), torch.ones_like(old, dtype=torch.bool), 0.25)
    assert found["mismatch/p99"] == pytest.approx(0.495, abs=1e-5)
    assert found["mismatch/share_above"] == pytest.approx(0.5, abs=1e-5)


def test_the_threshold_itself_is_within():
    assert of([0.5, -0.5, 0.625], threshold=0.5)["share_above"] == pytest.approx(1 / 3)


def test_what_is_not_finite_is_counted_and_above_and_in_no_mean():
    got = of([0.25, NAN, INF, -INF])
    want = {"mean": 0.25, "p99": 0.25, "max": 0.25, "share_above": 0.75, "nonfinite": 3.0}
    assert got == pytest.approx(want)


def test_two_impossible_tokens_have_no_distance():
    """-inf - -inf is not a number."""
    impossible, mask = torch.full((1, 1), -INF), torch.ones(1, 1, dtype=torch.bool)
    found = measure(impossible, impossible, mask, 0.5)
    assert found == {"mismatch/nonfinite": 1.0, "mismatch/share_above": 1.0}


def test_off_the_mask_anything_may_stand():
    assert of([0.25], masked=[NAN, INF, 9.0]) == of([0.25])


def test_of_no_token_there_is_no_mean():
    assert of([], masked=[NAN]) == {"nonfinite": 0.0}


def ruled(gaps, limit):
    old = -torch.tensor([gaps])
    mask = torch.ones_like(old, dtype=torch.bool)
    return Monitor(0.5, limit).of(old, torch.zeros_like(old), mask)[0]


@pytest.mark.parametrize(
    ("gaps", "limit"), [([0.25, 0.75], 0.5), ([9.0], None), ([NAN], None), ([], 0.5)]
)
def test_at_the_limit_or_without_one_it_only_measures(gaps, limit):
    assert "mismatch/nonfinite" in ruled(gaps, limit)


@pytest.mark.parametrize("gaps", [[0.25, 0.8], [0.25, 0.25, NAN], [INF]])
def test_above_the_limit_it_says_what_was_measured_and_what_to_do(gaps):
    with pytest.raises(FloatingPointError) as error:
        ruled(gaps, 0.5)
    wanted = "mismatch.stop_above 0.5 nonfinite share_above trained"
    assert str(error.value) == Says(wanted)


def test_a_rise_by_hand():
    """Steps that each rise by .001 from .02: of 11 S is 55, its variance 165, 54 / 12.8 > 4."""
    means = [0.02 + 0.001 * i for i in range(11)]
    found = rise(means, 0.05)
    assert found["mismatch/slope"] == pytest.approx(0.001)
    assert found["mismatch/steps_left"] == pytest.approx(20)
    assert rise(means[:10], 0.05) == {}  # (45 - 1) / 11.2 = 3.94
    assert rise([*means[:9], means[10], means[9]], 0.05) != {}  # (53 - 1) / 12.8 = 4.05
    assert rise([*means[:8], *reversed(means[8:])], 0.05) == {}  # (49 - 1) / 12.8 = 3.74


def test_one_step_of_a_hundred_times_the_mean_moves_neither_slope_nor_level():
    means = [0.01 + 0.0005 * i for i in range(40)]
    means[20] = 1.0
    found = rise(means, 0.05)
    assert found["mismatch/slope"] == pytest.approx(0.0005, rel=1e-6)
    assert found["mismatch/steps_left"] == pytest.approx(0.0205 / 0.0005)
    assert rise(means, 0.02)["mismatch/steps_left"] == 0


def test_what_falls_or_stands_or_wavers_is_no_rise():
    generator = torch.Generator().manual_seed(0)
    assert rise([], 0.05) == rise([0.1], 0.05) == rise([0.1] * 50, 0.05) == {}
    assert rise([0.05 - 0.001 * i for i in range(40)], 0.05) == {}
    wavering = (0.02 + 0.002 * torch.randn(1000, generator=generator)).tolist()
    assert all(rise(wavering[i : i + 50], 0.05) == {} for i in range(0, 950, 10))


def watched(means, limit=None):
    monitor, one = Monitor(stop_above=limit), torch.ones(1, 1, dtype=torch.bool)
    return [monitor.of(torch.full((1, 1), x), torch.zeros(1, 1), one) for x in means]


def test_a_rise_is_told_once_with_its_end():
    steps = watched([0.02 + 0.001 * i for i in range(16)], limit=0.5)
    told = [(i, sentence) for i, (_, sentence) in enumerate(steps) if sentence]
    assert [i for i, _ in told] == [10]
    assert told[0][1] == Says("mismatch/mean 1.0e-03 0.5 mismatch.stop_above 470")
    assert "mismatch/slope" not in steps[9][0] and "mismatch/slope" in steps[15][0]


def test_a_rise_that_ends_far_away_is_a_metric_alone():
    steps = watched([1e-6 * i for i in range(20)])
    assert not any(sentence for _, sentence in steps)
    assert steps[-1][0]["mismatch/steps_left"] == pytest.approx((0.05 - 19e-6) / 1e-6, rel=1e-3)


def test_a_second_rise_is_told_again():
    up = [0.01 + 0.001 * i for i in range(20)]
    told = [bool(sentence) for _, sentence in watched([*up, *reversed(up), *up[:1] * 50, *up])]
    assert sum(told) == 2


LOG_2, LOG_3 = math.log(2.0), math.log(3.0)
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


OLD = tensor([[-LOG_2, 0.0, LOG_2, NAN], [LOG_3, LOG_3, NAN, NAN], [NAN] * 4])
RATIO = gap(OLD, torch.zeros(3, 4).double(), MASK)  # of the tokens 1/2, 1, 2 and 3, 3


def close(got, want):
    torch.testing.assert_close(got, tensor(want), rtol=1e-12, atol=0)


def test_weights_are_finite_and_carry_no_gradient():
    on = torch.ones(1, 4, dtype=torch.bool)
    old = tensor([[1e4, -1e4, 0.0, 0.0]]).requires_grad_()
    log_ratio = gap(old, torch.zeros(1, 4), on)
    assert not log_ratio.requires_grad
    assert importance(log_ratio, on, "sequence").item() == 1
    close(importance(log_ratio, on, "token"), [[math.exp(20), math.exp(-20), 1, 1]])
    huge = importance(log_ratio + 1e3, on, "sequence")
    close(huge, [[math.exp(20)]])


# of the ratios 1/2, 1, 2 and 3, 3: k1 = -l, k2 = l^2 / 2, k3 = r - 1 - l
K2, K3 = [LOG_2**2 / 2, LOG_3**2 / 2], [2 - 1 - LOG_2, 3 - 1 - LOG_3]
K3_HALF = 0.5 - 1 + LOG_2


@pytest.mark.parametrize(
    ("option", "want"),
    [
        ("token_k1", [[LOG_2, 0, -LOG_2, 0], [-LOG_3, -LOG_3, 0, 0], [0, 0, 0, 0]]),
        ("token_k2", [[K2[0], 0, K2[0], 0], [K2[1], K2[1], 0, 0], [0, 0, 0, 0]]),
        ("token_k3", [[K3_HALF, 0, K3[0], 0], [K3[1], K3[1], 0, 0], [0, 0, 0, 0]]),
        ("seq_sum_k1", [[0], [-2 * LOG_3], [0]]),
        ("seq_sum_k2", [[2 * K2[0]], [2 * K2[1]], [0]]),
        ("seq_sum_k3", [[K3_HALF + K3[0]], [2 * K3[1]], [0]]),
        ("seq_mean_k1", [[0], [-LOG_3], [0]]),
        ("seq_mean_k2", [[2 * K2[0] / 3], [K2[1]], [0]]),
        ("seq_mean_k3", [[(K3_HALF + K3[0]) / 3], [K3[1]], [0]]),
        ("seq_max_k2", [[K2[0]], [K2[1]], [0]]),
        ("seq_max_k3", [[K3[0]], [K3[1]], [0]]),
    ],
)
def test_divergences(option, want):
    torch.testing.assert_close(divergence(RATIO, MASK, option), tensor(want))


def test_every_option_must_be_passed_and_bounds_are_inside():
    assert torch.equal(kept_tokens(RATIO, MASK, {}), MASK)
    own = (-LOG_2, LOG_2)
    got = kept_tokens(RATIO, MASK, {"token_k1": own, "seq_max_k3": (-math.inf, 0.4)})
    assert got.int().tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    got = kept_tokens(RATIO, MASK, {"token_k1": (-LOG_2, LOG_2 - 1e-9)})
    assert got.int().tolist() == [[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert length_ratio(got, MASK).tolist() == [[1.5], [2.0], [0.0]]
