"""Nothing depends on how a batch is padded or cut, nor on what is empty; where every ratio is 1."""

import pytest
import torch
from asked_conflicts import conflicts
from batches import (
    GARBAGE,
    KL,
    TOKEN_FIELDS,
    Batch,
    change,
    close,
    every_method,
    make,
    on_policy,
    run,
)
from matrix import some_of

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.extensions.old_policy import inert_on_policy, on_policy_objective
from nemo_algos.algorithms.kernel import group_advantages

CUTS = ([1, 5, 3, 7], [1] * 16)
CORRECTED = LossConfig(
    reference_policy_kl_penalty=0.01,
    use_importance_sampling_correction=True,
    truncated_importance_sampling_type="seq-mask-tis",
    truncated_importance_sampling_ratio=1.05,
    truncated_importance_sampling_ratio_min=0.9,
)


def same_summary(got, want):
    got, want = got.summary(), want.summary()
    assert got.keys() == want.keys()
    for key, value in want.items():
        assert got[key] == pytest.approx(value, rel=1e-11, abs=1e-13), key


DROPS = {"loss_fn": {}, "grpo": {"use_dynamic_sampling": True}}
SILENT = {"kl_cov"}  # it pulls at one token


def padded(batch, places):
    """Columns of garbage, not in the mask, put before these positions."""
    keep = torch.ones(12 + len(places), dtype=torch.bool)
    keep[[p + i for i, p in enumerate(places)]] = False

    def widen(x):
        wide = torch.tensor(GARBAGE, dtype=x.dtype)[torch.arange(16 * len(keep)) % 5]
        wide = wide.view(16, -1).clone()
        wide[:, keep] = x
        return wide

    mask = torch.zeros(16, len(keep), dtype=torch.bool)
    mask[:, keep] = batch.rollouts.mask
    wide = {k: widen(getattr(batch.rollouts, k)) for k in TOKEN_FIELDS}
    wide["turn"] = torch.full(mask.shape, -7)
    wide["turn"][:, keep] = batch.rollouts.turn
    return Batch(change(batch, mask=mask, **wide).rollouts, widen(batch.logprobs)), keep


@every_method
@pytest.mark.parametrize("places", some_of([[0, 3, 7, 12], [12, 12, 12], [0, 0]], 1))
def test_padding_columns(name, places):
    batch = make()
    wide, keep = padded(batch, places)
    whole, result = run(name, batch), run(name, wide)
    close(result.value, whole.value)
    close(result.grad[:, keep], whole.grad)
    assert (result.grad[:, ~keep] == 0).all()
    same_summary(result.stats, whole.stats)


def in_pieces(name, batch, pieces, config, counts):
    """Sums of losses, gradients and statistics over row sets, with the whole batch's counts."""
    signals, grad = build(name).signals(batch.rollouts, {}), torch.zeros_like(batch.logprobs)
    value, stats = 0.0, None
    for rows in pieces:
        part = run(name, batch.rows(rows), config, signals[rows], counts)
        value, grad[rows] = value + part.value, part.grad
        stats = part.stats if stats is None else stats + part.stats
    return value, grad, stats


@every_method
@pytest.mark.parametrize("cuts", some_of(CUTS, 1), ids=str)
def test_micro_batches(name, cuts):
    batch = make()
    whole, counts = run(name, batch), Counts.of(batch.rollouts.mask)
    value, grad, stats = in_pieces(name, batch, torch.arange(16).split(cuts), KL, counts)
    close(value, whole.value)
    close(grad, whole.grad)
    same_summary(stats, whole.stats)


@every_method
def test_data_parallel_ranks_with_added_counts(name):
    batch = make(seed=2)
    whole = run(name, batch, CORRECTED)
    ranks = [torch.arange(start, 16, 3) for start in range(3)]
    counts = [Counts.of(batch.rollouts.mask[rows]) for rows in ranks]
    total = counts[0] + counts[1] + counts[2]
    assert total == Counts.of(batch.rollouts.mask)
    value, grad, stats = in_pieces(name, batch, ranks, CORRECTED, total)
    close(value, whole.value)
    close(grad, whole.grad)
    same_summary(stats, whole.stats)


@every_method
def test_batch_of_empty_rows_has_loss_0(name):
    batch = make()
    empty = change(batch, mask=torch.zeros_like(batch.rollouts.mask))
    result = run(name, empty)
    assert result.value == 0
    assert (result.grad == 0).all()
    assert result.stats.summary()["loss"] == 0


@every_method
def test_inert_rows_have_no_gradient_and_are_there_where_the_record_says(name):
    batch = make()
    inert = build(name).inert_rows(build(name).signals(batch.rollouts, {}))
    grad = run(name, batch, LossConfig()).grad
    assert (grad[inert] == 0).all()
    flat = batch.rollouts.group == 4
    assert inert[flat].all() == build(name).base.flat_group_is_inert
    assert (grad[flat] != 0).any() == (not inert[flat].all() and name not in SILENT)


PULLS = [("ipo", "kl_tau"), ("prime_rl", "kl_tau"), ("dro", "beta"), ("kimi", "beta")]


@pytest.mark.parametrize(("name", "pull"), PULLS)
@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_a_flat_group_is_inert_where_the_pull_has_no_weight(name, pull, weight):
    """And dynamic sampling may then drop it."""
    batch, method = make(), {"name": name, pull: weight}
    algorithm = build(method)
    flat = batch.rollouts.group == 4
    inert = algorithm.inert_rows(algorithm.signals(batch.rollouts))[flat]
    grad = run(method, batch, LossConfig()).grad[flat]
    assert inert.all() == (weight == 0) == (grad == 0).all()
    refused = {finding.path for finding in conflicts(DROPS, {}, algorithm)}
    assert ("grpo.use_dynamic_sampling" in refused) == (weight > 0)


def score(name, batch):
    """The gradient of -mean(A log pi), A the method's own, [B,S], its mean the method's own."""
    algorithm = build({"name": name, **GENTLE.get(name, {})})
    A = algorithm.signals(batch.rollouts, {}).advantages
    mask = batch.rollouts.mask
    rows = mask.any(1)
    count = mask.sum(1, keepdim=True) * rows.sum() if algorithm.mean == "sequence" else mask.sum()
    count = rows.sum() if name == "turn_quatro" else count  # a turn's product, each turn alike
    return (-A / count.clamp(min=1)).where(mask, 0.0)


# quatro's product of ratios has |o| times the gradient of a sequence mean
GENTLE = {"quatro": {"ratio": "geometric_mean"}}


@every_method
def test_what_is_left_is_what_the_record_says(name):
    """Score function of its own advantages, or more where the record says that more is left."""
    batch, block = on_policy(make()), {"name": name, **GENTLE.get(name, {})}
    batch = change(batch, gen_logprobs=batch.rollouts.old_logprobs + 0.5)  # the sampler is far
    algorithm, got = build(block), run(block, batch, LossConfig()).grad
    left, grpos = on_policy_objective(algorithm), algorithm.advantages.method.advantages
    if left.startswith("REINFORCE") or (not inert_on_policy(algorithm) and name in PLAINLY):
        close(got, score(name, batch))
    else:
        assert name in MORE
        assert float((got - score(name, batch)).abs().max()) > 1e-4
    group = grpos is group_advantages
    assert left.endswith("group baseline") == (bool(left) and group and name not in MORE)


PLAINLY = {"gpg", "m2po", "opd"}  # nothing of theirs is a function of the ratio
MORE = {"gepo", "opsm"}  # a denominator of its own; a comparison with the sampler


@pytest.mark.parametrize("name", ["kl_cov", "clip_cov", "m2po"])
@pytest.mark.parametrize("share", [0.01, 0.3])
def test_equal_tokens_share_places_whatever_their_order(name, share):
    """Responses that are twins: whichever of their tokens are taken, no order decides it."""
    one = make(seed=3, large=False).rollouts
    rows = torch.arange(len(one)).repeat(2)
    twins = one[rows]
    params = {"threshold": 0.002} if name == "m2po" else {"share": share}
    bounds = {"lower": -1e9, "upper": 1e9} if name == "clip_cov" else {}
    algorithm = build({"name": name, **params, **bounds})

    def taken(rollouts):
        signals = algorithm.signals(rollouts)
        return signals.extras.get("penalised", signals.advantages)

    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    whole = taken(twins)
    close(taken(twins[order]), whole[order])
    close(whole[: len(one)], whole[len(one) :])
