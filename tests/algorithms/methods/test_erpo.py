"""ERPO's token advantages: their moments, what must be exactly 0, what is missing."""

from dataclasses import replace

import pytest
import torch
from batches import change, make

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.groups import advantages as group_advantages
from nemo_algos.algorithms.rollouts import Rollouts

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
