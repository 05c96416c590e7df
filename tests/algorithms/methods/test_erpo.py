"""ERPO's token advantages: what they depend on, and what must be exactly 0."""

import math
import statistics
from dataclasses import replace

import pytest
import torch
from batches import GARBAGE, TOKEN_FIELDS, change, close, make, run

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.groups import advantages as group_advantages
from nemo_algos.algorithms.rollouts import Rollouts

NAN = float("nan")


def advantages(batch, **params):
    return build({"name": "erpo", **params}).signals(batch.rollouts).advantages


def zscores(values):
    """(x - mean) / (population std + 1e-6) of a dict's values."""
    if not values:
        return {}
    centre, std = statistics.fmean(values.values()), statistics.pstdev(values.values())
    return {k: (v - centre) / (std + 1e-6) for k, v in values.items()}


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


def test_flat_groups_are_exactly_0():
    batch = make()
    flat = (batch.rollouts.group == 4) | (batch.rollouts.group == 11)
    A = advantages(batch)
    assert flat.sum() == 5
    assert (A[flat] == 0).all() and not A[flat].signbit().any()
    assert (A[~flat & (batch.rollouts.lengths > 0)] != 0).any(1).all()


def test_zero_off_the_mask():
    batch = make()
    assert (advantages(batch)[~batch.rollouts.mask] == 0).all()


def test_garbage_off_the_mask_is_harmless():
    batch = make()
    clean = {k: getattr(batch.rollouts, k).where(batch.rollouts.mask, 0.0) for k in TOKEN_FIELDS}
    assert any(math.isnan(x) for x in GARBAGE)
    assert (advantages(change(batch, **clean)) == advantages(batch)).all()


def test_progress_scale_cancels():
    """In eq. 9's z-score, up to its 1e-6."""
    batch = make()
    close(advantages(batch, progress_scale=100.0), advantages(batch), 2e-3)
    close(advantages(batch, progress_scale=1e4), advantages(batch, progress_scale=1e3), 2e-7)


def test_only_the_product_of_weight_and_target_matters():
    batch = make()
    one = advantages(batch, process_weight=0.1, target_std=3.0)
    close(one, advantages(batch, process_weight=0.3, target_std=1.0))


def outcome_only(batch):
    """z over the group's tokens of the group advantage."""
    rollouts = batch.rollouts
    A = group_advantages(rollouts.rewards, rollouts.groups).tolist()
    out = torch.zeros(rollouts.mask.shape, dtype=torch.float64)
    for label in set(rollouts.group.tolist()):
        keys = [
            k for k in map(tuple, rollouts.mask.nonzero().tolist()) if rollouts.group[k[0]] == label
        ]
        for k, v in zscores({k: A[k[0]] for k in keys}).items():
            out[k] = v
    return out


def test_old_equal_to_ref_leaves_the_outcome():
    batch = make()
    same = change(batch, ref_logprobs=batch.rollouts.old_logprobs)
    signals = build("erpo").signals(same.rollouts)
    close(signals.advantages, outcome_only(batch), 1e-11)
    assert signals.metrics["erpo/process_signal"] == 0


def test_weight_0_is_the_outcome_normalised_over_tokens_and_not_grpo():
    batch = make()
    close(advantages(batch, process_weight=0), outcome_only(batch), 1e-11)
    token_grpo = run({"name": "grpo", "aggregation": "token"}, batch)
    got = run({"name": "erpo", "process_weight": 0}, batch)
    assert float((got.grad - token_grpo.grad).abs().max()) > 1e-3


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


def test_equal_entropies_open_every_gate_halfway():
    """The gate's z-score is 0: sigmoid(0)."""
    for seed in range(50):
        rollouts, old = one_kind_of_response(seed, torch.float32)
        rollouts = replace(rollouts, entropy=torch.full_like(old, 2.3), ref_logprobs=old.roll(1, 1))
        assert build("erpo").signals(rollouts).metrics["erpo/gate"] == 0.5
        assert build("erpo").signals(rollouts).metrics["erpo/gate_open_share"] == 0


def test_a_constant_distance_to_the_reference_is_no_process_signal():
    """Log-probs on a grid, so that their differences are exact."""
    for seed in range(50):
        rollouts, old = one_kind_of_response(seed, torch.float32)
        old = (old * 64).round() / 64
        shifted = replace(rollouts, old_logprobs=old, ref_logprobs=old - 0.375)
        signals = build("erpo").signals(shifted)
        assert signals.metrics["erpo/process_signal"] == 0
        assert (signals.advantages == 0).all()
