"""The `rollout_correction:` block with every method: what it changes, and what it refuses."""

import math
from dataclasses import replace

import pytest
import torch
from batches import KL, Batch, Result, change, close, every_method, make
from says import Says

from nemo_algos import batch_loss
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.correction import (
    OPTIONS,
    PRESETS,
    CorrectionConfig,
    expected_product,
    sampler_metrics,
)
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines.remarks import Remarks
from nemo_algos.findings import ConfigError

BOTH = {"rollout_is": "token", "rollout_is_threshold": 1.1}
BOTH |= {"rollout_rs": "token_k2,seq_mean_k1", "rollout_rs_threshold": "0.03,0.95_1.05"}
BYPASS = {"bypass_mode": True, "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.1}
NOT_TWO = {"erpo", "high_entropy", "m2po", "opsm", "spo"}  # refused; gpg has presets of its own


OF_SEQUENCES = {"quatro", "gmpo", "gepo"}  # one term of n tokens becomes n equal ones


def corrected(name, batch, correction, rows=None, counts=None):
    """The loss of these rows of the batch, with signals of the whole."""
    algorithm = build(name, correction)
    whole, _ = algorithm.correct(batch.rollouts)
    signals = algorithm.signals(whole, {})
    rows = slice(None) if rows is None else rows
    counts = Counts.of(whole.mask) if counts is None else counts
    logprobs = batch.logprobs[rows].clone().requires_grad_()
    loss = policy_loss(algorithm, logprobs, whole[rows], signals[rows], counts, KL)
    loss.value.backward()
    return Result(loss.value.detach(), logprobs.grad, loss.stats)


def of_two(name):
    """The method in two-policy mode, where it can be."""
    return {**BYPASS, "loss_type": "reinforce"} if name == "gpg" else BYPASS


@every_method
def test_weights_of_1_and_nothing_rejected_change_no_bit(name):
    batch = make()
    batch = change(batch, gen_logprobs=batch.rollouts.old_logprobs)
    plain = corrected(name, batch, None)
    neutral = {"rollout_is": "sequence", "rollout_rs": ",".join(OPTIONS)}
    got = corrected(name, batch, neutral | {"rollout_rs_threshold": 1.01})
    same = {"tolerance": 1e-15} if name in OF_SEQUENCES else {"tolerance": 0}
    close(got.value, plain.value, **same)
    close(got.grad, plain.grad, **same)
    if name not in NOT_TWO:
        two = corrected(name, batch, {"bypass_mode": True})
        assert torch.equal(two.value, plain.value) and torch.equal(two.grad, plain.grad)


@every_method
@pytest.mark.parametrize("kind", ["decoupled", "two policies"])
def test_micro_batches_padding_and_order(name, kind):
    if kind == "two policies" and name in NOT_TWO:
        return
    batch = make()
    correction = BOTH if kind == "decoupled" else of_two(name)
    whole = corrected(name, batch, correction)
    assert whole.value.isfinite() and whole.grad.isfinite().all()
    counts = Counts.of(build(name, correction).correct(batch.rollouts)[0].mask)
    parts = [
        corrected(name, batch, correction, r, counts) for r in torch.arange(16).split([1, 9, 6])
    ]
    close(torch.stack([p.value for p in parts]).sum(), whole.value)
    close(torch.cat([p.grad for p in parts]), whole.grad)
    rows = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    shuffled = corrected(name, batch.rows(rows), correction)
    close(shuffled.value, whole.value)
    close(shuffled.grad, whole.grad[rows])


@every_method
def test_the_gradient_is_homogeneous_in_the_weights(name):
    """Weights of 2 in place of 1 double the surrogate, whatever the method makes of A."""
    batch = make(large=False)
    once = change(batch, gen_logprobs=batch.rollouts.old_logprobs)
    algorithm = build(name, {"rollout_is": "token", "rollout_is_threshold": 8.0})
    rollouts, _ = algorithm.correct(once.rollouts)
    values = []
    for weight in (1.0, 2.0):
        weighed = replace(
            rollouts, rollout_is_weights=torch.full_like(rollouts.old_logprobs, weight)
        )
        logprobs = once.logprobs.clone().requires_grad_()
        signals, counts = algorithm.signals(weighed, {}), Counts.of(rollouts.mask)
        value = policy_loss(algorithm, logprobs, weighed, signals, counts).value
        value.backward()
        values.append((value.detach(), logprobs.grad))
    close(values[1][0], 2 * values[0][0])
    close(values[1][1], 2 * values[0][1])


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_trains_grpo_or_gpg(name):
    method = {"name": "gpg", "advantages": "grpo"} if "pg" in name else "grpo"
    batch = make()
    result = corrected(method, batch, {"preset": name})
    assert result.value.isfinite() and result.grad.isfinite().all()


def hand():
    """Two responses to a prompt, pi / pi_sampler of their tokens 1, 4 and 1/2."""
    on = torch.tensor([[True, True], [True, False]])
    gaps = [[0.0, math.log(4.0)], [math.log(0.5), 9.0]]
    old = torch.tensor(gaps, dtype=torch.float64) - 3
    sampled = torch.full((2, 2), -3.0, dtype=torch.float64)
    rollouts = Rollouts([0, 0], [1.0, 0.0], on, old, gen_logprobs=sampled)
    return Batch(rollouts, old.clone())


# A is +-a; on policy r = 1, so that J is the mean of w A over the tokens that are kept
A = 0.5 / (math.sqrt(0.5) + 1e-6)


@pytest.mark.parametrize(
    ("correction", "sums", "tokens"),
    [
        ({}, 2 - 1, 3),
        ({"rollout_is": "token"}, 1 + 2 - 0.5, 3),
        ({"rollout_is": "sequence"}, 2 + 2 - 0.5, 3),
        ({"rollout_is": "token", "rollout_is_threshold": "0.6_5.0"}, 1 + 4 - 0, 3),
        ({"rollout_is": "token", "rollout_is_threshold": 9, "rollout_is_batch_normalize": True},
         (1 + 4 - 0.5) / (5.5 / 3), 3),
        ({"rollout_is": "sequence", "rollout_is_threshold": 9, "rollout_is_batch_normalize": True},
         (4 + 4 - 0.5) / (4.5 / 2), 3),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": 3}, 1 - 1, 2),
        ({"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": 3}, -1, 1),
        ({"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.6_2.1"}, -1, 1),
        ({"rollout_is": "token", "rollout_rs": "token_k3", "rollout_rs_threshold": 0.25},
         1 - 0.5, 2),
    ],
)  # fmt: skip
def test_the_loss_by_hand(correction, sums, tokens):
    batch = hand()
    algorithm = build({"name": "grpo", "aggregation": "token"}, correction)
    value, _ = batch_loss(algorithm, batch.logprobs.requires_grad_(), batch.rollouts)
    assert float(value) == pytest.approx(-A * sums / tokens, rel=1e-9, abs=1e-12)


def test_the_metrics_by_hand():
    correction = {"rollout_is": "token", "rollout_rs": "token_k3", "rollout_rs_threshold": 0.25}
    batch = hand()
    _, metrics = batch_loss(
        build("grpo", correction), batch.logprobs.requires_grad_(), batch.rollouts
    )
    found = {k: v for k, v in metrics.items() if k.startswith("correction/")}
    assert found == {
        "correction/rejected_tokens": pytest.approx(1 / 3),
        "correction/rejected_sequences": 0.5,
        "correction/weight_mean": pytest.approx(3.5 / 3),  # of 1, 2 (cut from 4) and 1/2
        "correction/weight_max": 4,
        "correction/cut_tokens": pytest.approx(1 / 3),
        "correction/ess": pytest.approx(3.5**2 / 3 / 5.25),
    }
    two = {"bypass_mode": True, "rollout_rs": "token_k3", "rollout_rs_threshold": 0.25}
    _, metrics = batch_loss(build("grpo", two), batch.logprobs.requires_grad_(), batch.rollouts)
    found = {k: v for k, v in metrics.items() if k.startswith("correction/")}
    assert found == {"correction/rejected_tokens": pytest.approx(1 / 3)}


def test_with_old_as_the_sampler_the_policy_as_it_is_decides():
    """One token drifts beyond the bound after the rollouts: its term is gone, and it counts."""
    batch = hand()
    two = {"bypass_mode": True, "rollout_rs": "token_k2", "rollout_rs_threshold": 1.0}
    algorithm = build({"name": "grpo", "aggregation": "token"}, two)
    logprobs = batch.rollouts.gen_logprobs.clone()
    logprobs[0, 1] += 2.0
    value, _ = batch_loss(algorithm, logprobs.requires_grad_(), batch.rollouts)
    assert float(value) == pytest.approx(-(A - A) / 3, abs=1e-12)
    algorithm = build({"name": "grpo", "aggregation": "sequence"}, two)
    value, _ = batch_loss(algorithm, logprobs.requires_grad_(), batch.rollouts)
    assert float(value) == pytest.approx(-(A - A) / 2, abs=1e-12)
    assert float(batch_loss("grpo", logprobs.requires_grad_(), batch.rollouts)[0]) != pytest.approx(
        0, abs=1e-3
    )


@pytest.mark.parametrize(
    ("block", "finding"),
    [
        ({"preset": "decoupled_geo"}, "rollout_correction.preset: decoupled_geo_rs"),
        ({"rollout_si": "token"}, "rollout_correction.rollout_si: rollout_rs"),
        (
            {"rollout_is": "token", "rollout_is_threshold": 0.55},
            "rollout_correction: rollout_is_threshold 0.55 1 '0.5_5.0'",
        ),
        (
            {"rollout_is": "token", "rollout_is_threshold": "5.0_0.5"},
            "rollout_correction: rollout_is_threshold '5.0_0.5' 0",
        ),
        (
            {"rollout_is": "token", "rollout_is_threshold": "two"},
            "rollout_correction: rollout_is_threshold 'two' LOW_HIGH",
        ),
        ({"rollout_is_threshold": 3.0}, "rollout_correction: rollout_is_threshold rollout_is"),
        ({"rollout_rs": "token_k1"}, "rollout_correction: rollout_rs rollout_rs_threshold"),
        (
            {"rollout_rs": "seq_max_k1", "rollout_rs_threshold": 2.0},
            "rollout_correction: rollout_rs seq_max_k1 seq_max_k3",
        ),
        (
            {"rollout_rs": "token_k1", "rollout_rs_threshold": "1,2"},
            "rollout_correction: rollout_rs_threshold 2 1 rollout_rs",
        ),
        (
            {"rollout_rs": "token_k1", "rollout_rs_threshold": 0.5},
            "rollout_correction: rollout_rs_threshold 0.5 1",
        ),
        (
            {"rollout_rs": "token_k2", "rollout_rs_threshold": "0.1_0.2"},
            "rollout_correction: token_k2 one rollout_rs_threshold 0.1_0.2",
        ),
        ({"loss_type": "reinforce"}, "rollout_correction: loss_type bypass_mode"),
        (
            {"preset": "bypass_pg_is", "rollout_is_batch_normalize": True},
            "rollout_correction: rollout_is_batch_normalize bypass_mode micro-batch",
        ),
    ],
)
def test_a_wrong_block_is_refused(block, finding):
    with pytest.raises(ConfigError) as error:
        build("gpg" if "pg" in str(block) else "grpo", block)
    assert [str(f) for f in error.value.findings] == [Says(finding)]


@pytest.mark.parametrize(
    ("method", "block", "words"),
    [
        ("erpo", BYPASS, "erpo entropies bypass_mode"),
        ("high_entropy", BYPASS, "high_entropy entropies bypass_mode"),
        (
            {"name": "grpo", "terms": {"adaptive_entropy": {}}},
            BYPASS,
            "grpo+adaptive_entropy entropies bypass_mode",
        ),
        ("m2po", BYPASS, "m2po pi_old sampler bypass_mode"),
        ("opsm", BYPASS, "opsm pi_old sampler bypass_mode"),
        ("spo", BYPASS, "spo bypass_mode forgetting constant"),
        ("grpo", {"preset": "bypass_pg_is"}, "reinforce grpo gpg ppo_clip rollout_is"),
        ("gpg", {"preset": "bypass_ppo_clip"}, "gpg ratio reinforce"),
        ("cispo", {"bypass_mode": True, "rollout_is": "token"}, "cispo ratio rollout_is"),
    ],
)
def test_two_policies_are_refused_with_the_reason(method, block, words):
    with pytest.raises(ConfigError) as error:
        build(method, block)
    assert [str(f) for f in error.value.findings] == [Says(f"rollout_correction: {words}")]


def test_one_weighing_by_the_sampler():
    batch, config = hand(), LossConfig(use_importance_sampling_correction=True)
    words = "loss_fn.use_importance_sampling_correction: rollout_correction false"
    with pytest.raises(ValueError) as error:
        batch_loss(build("grpo", BOTH), batch.logprobs.requires_grad_(), batch.rollouts, config)
    assert str(error.value) == Says(words)


def test_what_cannot_be_corrected_is_refused():
    batch, algorithm = hand(), build("grpo", BOTH)
    for correction in (BOTH, BYPASS, {"preset": "decoupled_geo_rs"}):
        with pytest.raises(ValueError, match=r"Algorithm\.correct\b"):
            build("grpo", correction).signals(batch.rollouts)
    missing = replace(batch.rollouts, gen_logprobs=None)
    with pytest.raises(ValueError, match=r"^rollout_correction .*\bgen_logprobs \[B, S\]"):
        algorithm.correct(missing)
    sampled = batch.rollouts.gen_logprobs.clone()
    sampled[0, 1] = -math.inf
    infinite = replace(batch.rollouts, gen_logprobs=sampled)
    with pytest.raises(ValueError, match=r"^1 .*\bsequence 0, position 1\b"):
        algorithm.correct(infinite)


HIGH = "truncated_importance_sampling_ratio"
TIS = {
    "use_importance_sampling_correction": True,
    "truncated_importance_sampling_type": "tis",
    HIGH: 2.0,
}


@pytest.mark.parametrize("name", ["gspo", "quatro", "gmpo", "luspo"])
def test_the_weight_is_the_geometric_mean(name):
    """Token weights 2 and 8 are 4; 27 alone is 27, cut at 5."""
    log = torch.tensor([[2.0, 8.0], [27.0, 1.0]], dtype=torch.float64).log()
    mask = torch.tensor([[True, True], [True, False]])
    old = torch.full((2, 2), -1.0, dtype=torch.float64)
    rollouts = Rollouts([0, 0], [1, 0], mask, old, gen_logprobs=old - log)
    both = []
    for config in (LossConfig(), LossConfig(**TIS | {HIGH: 5.0})):
        leaf = (old + 0.01).requires_grad_()
        batch_loss(name, leaf, rollouts, config)[0].backward()
        both.append(leaf.grad)
    plain, weighed = both
    close(weighed[mask], plain[mask] * torch.tensor([4.0, 4.0, 5.0], dtype=torch.float64))
    assert plain[mask].any()


@pytest.mark.parametrize("tokens", [12, 512, 2048])
@pytest.mark.parametrize("threshold", [2.0, "0.5_5.0"])
def test_the_expected_product_is_the_mean_of_drawn_ones(tokens, threshold):
    cut = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=threshold).cut
    s = 0.07 * math.sqrt(tokens)
    rng = torch.Generator().manual_seed(1)
    drawn = (s * torch.randn(400_000, generator=rng, dtype=torch.float64) - s * s / 2).exp()
    inside = (
        drawn.clamp(max=cut[2])
        if cut[0] == "tis"
        else drawn.where((drawn >= cut[1]) & (drawn <= cut[2]), 0.0)
    )
    assert expected_product(tokens, cut) == pytest.approx(float(inside.mean()), abs=0.005)


def test_metrics_and_one_remark():
    """Two tokens of weight 1 and 3: mean 2, (1 + 3)^2 / (2 (1 + 9)) = 0.8."""
    mask = torch.ones(2, 1).bool()
    old = torch.zeros(2, 1)
    gen = -torch.tensor([[1.0], [3.0]]).log()
    found = sampler_metrics(METHODS["grpo"], (None, 0.0, math.inf), old, gen, mask)
    assert found["correction/weight_mean"] == pytest.approx(2)
    assert found["correction/ess"] == pytest.approx(0.8)
    remarks = Remarks(8, 64, 12)
    row = {"reward/mean": 0.5}
    assert not remarks.of(1, row | found)
    (said,) = remarks.of(2, row | {"correction/weight_mean": 0.3})
    assert "correction/weight_mean=0.3" in said
    assert not remarks.of(3, row | {"correction/weight_mean": 0.3})
