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
from nemo_algos.algorithms.core.logprob_gap import Monitor, measure, rare, sick

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


def watched(means, **given):
    monitor, one = Monitor(**given), torch.ones(1, 1, dtype=torch.bool)
    return [monitor.of(torch.full((1, 1), x), torch.zeros(1, 1), one) for x in means]


def told(means, **given):
    return [(i, text) for i, (_, text) in enumerate(watched(means, **given), 1) if text]


def test_a_level_is_told_in_its_first_step_and_again_when_it_has_doubled():
    found = told([0.01, 0.06, 0.1, 0.11, 0.13, 3.0, 3.0])
    assert [step for step, _ in found] == [2, 5, 6]
    assert found[2][1] == Says("mismatch/mean is 3 nats, above 0.05")
    assert not told([0.049] * 400)


@pytest.mark.parametrize(
    ("precision", "limit"), [("float32", 0.05), ("fp8_blockwise", 0.06), ("nvfp4", INF)]
)
def test_the_level_is_against_what_the_precision_explains(precision, limit):
    assert sick(precision) == limit
    assert bool(told([0.055], sick=sick(precision))) == (limit < 0.055)


def test_a_rise_is_told_where_it_has_doubled_and_by_no_forecast():
    slow = [0.0125 * (1 + 3 * step / 100) for step in range(110)]
    (first, level) = told(slow)
    assert first[1] == Says("risen from 0.016 to 0.032")
    assert first[0] < 80 and level[0] == 101 and "above 0.05" in level[1]
    assert not told([0.004 + 0.0001 * step for step in range(100)])  # ends in what is usual


@pytest.mark.parametrize("rho", [0, 0.5, 0.8, 0.9])
def test_a_mean_that_wavers_slowly_does_not_rise(rho):
    """Of 100 runs of 400 steps around 0.012, standard deviation 0.002, at most 1."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400, 100, generator=generator, dtype=torch.float64)
    wave = torch.zeros(100).double()
    means = []
    for row in noise:
        wave = rho * wave + math.sqrt(1 - rho**2) * row
        means.append((0.012 + 0.002 * wave).clamp(min=1e-4))
    runs = torch.stack(means, 1).tolist()
    monitors = [Monitor() for _ in runs]
    risen = [any(m.risen(mean) for mean in run) for m, run in zip(monitors, runs, strict=True)]
    assert sum(risen) <= 1


def apart(gaps):
    """The sentence on tokens that are so far apart, and the metrics."""
    gaps = torch.as_tensor(gaps).reshape(1, -1)
    mask = torch.ones_like(gaps, dtype=torch.bool)
    found, text = Monitor().of(gaps, torch.zeros_like(gaps), mask)
    return text, found.get("mismatch/rare")


def test_rare_tokens_are_told_by_their_count():
    """Of 2,000 tokens 4,000 e^-12 = 0.025 are expected: 4 surprise by 4 (log(4 / 0.025) - 1)."""
    noise = 0.01 * torch.randn(2000, generator=torch.Generator().manual_seed(0))
    for count in range(6):
        gaps = noise.clone()
        gaps[:count] = 12.0
        surprise = count * (math.log(max(count, 1) / (4000 * math.exp(-12))) - 1)
        text, rare = apart(gaps)
        assert (rare == count) == (surprise > 16) == bool(text), count
    assert text == Says("5 of 2000 tokens 12 nats 0.025")


def test_what_sampling_explains_is_not_rare():
    """Tokens of one policy, and the log-probs of another, however far: P(d > a) <= e^-a."""
    generator = torch.Generator().manual_seed(1)
    for scale in (0.5, 1.0, 2.0, 4.0):
        first = torch.randn(50, generator=generator).double().mul(2).log_softmax(0)
        other = first + scale * torch.randn(50, generator=generator)
        other = other.log_softmax(0)
        drawn = first.exp().multinomial(100_000, replacement=True, generator=generator)
        d = (other - first)[drawn]
        assert rare(d.clamp(min=0)) == {}


def test_what_is_not_finite_is_told_by_its_count():
    found = told([NAN, NAN, 0.01])
    assert found == [(1, Says("1 of 1 tokens not finite"))]


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
