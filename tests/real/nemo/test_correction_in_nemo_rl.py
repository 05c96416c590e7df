"""Rollout correction through NeMo-RL's loss: the embedded engine's numbers, masks, columns."""

import batches
import nemo_batch
import pytest
import torch
from nemo_batch import METHODS

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.config import ConfigError
from nemo_algos.engines.nemo import columns
from nemo_algos.engines.nemo.loss_metrics import REJECTED

WEIGHED = {"rollout_is": "token", "rollout_is_threshold": 1.1}
REJECTING = {"rollout_rs": "token_k2,seq_mean_k1", "rollout_rs_threshold": "0.03,0.95_1.05"}
DECOUPLED = {
    "weights": WEIGHED,
    "a weight per sequence": {"preset": "decoupled_seq_is"},
    "rejections": REJECTING,
    "both": WEIGHED | REJECTING | {"rollout_is_batch_normalize": True},
}
BYPASS = {
    "old is the sampler": {"preset": "bypass_ppo_clip"},
    "rejecting": {"preset": "bypass_ppo_clip", "rollout_rs": "token_k3"}
    | {"rollout_rs_threshold": 0.05},
}
FORWARD = {k for k, m in METHODS.items() if m.needs & {"entropy", "gen_logprobs"}}
TWO = [name for name in METHODS if name not in FORWARD | {"gpg"}]  # gpg has no ratio to clip
CASES = [(name, label) for label in DECOUPLED for name in METHODS]
CASES += [(name, label) for label in BYPASS for name in TWO]


def both(algorithm, rollouts, logprobs, theirs=None, **loss_fn):
    """Value and gradient through NeMo-RL's loss, its metrics, and the embedded engine's two.

    theirs: loss_fn of NeMo-RL, where its keys are others.
    """
    *theirs, metrics = nemo_batch.through(algorithm, rollouts, logprobs, **(theirs or loss_fn))
    corrected, _ = algorithm.correct(rollouts)
    signals, counts = algorithm.signals(corrected, {}), Counts.of(corrected.mask)
    leaf = logprobs.clone().requires_grad_()
    ours = policy_loss(algorithm, leaf, corrected, signals, counts, LossConfig(**loss_fn))
    ours.value.backward()
    return theirs, (ours.value.detach(), leaf.grad), metrics, ours.stats


def agree(theirs, ours):
    torch.testing.assert_close(theirs[0], ours[0], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(theirs[1], ours[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("name", "label"), CASES)
def test_agrees_with_the_embedded_engine(name, label):
    rollouts, logprobs = batches.make(seed=3, large=False)
    theirs, ours, *_ = both(build(name, (DECOUPLED | BYPASS)[label]), rollouts, logprobs)
    agree(theirs, ours)
    assert ours[1].abs().max() > 0


@pytest.mark.parametrize("preset", ["bypass_pg_is", "bypass_pg_token_icepop"])
def test_reinforce_with_the_weight_of_the_policy_as_it_is(preset):
    algorithm = build({"name": "gpg", "advantages": "grpo"}, {"preset": preset})
    rollouts, logprobs = batches.make(seed=3, large=False)
    agree(*both(algorithm, rollouts, logprobs)[:2])


@pytest.mark.parametrize("correction", [*DECOUPLED.values(), *BYPASS.values()], ids=str)
def test_the_kl_penalty_is_of_the_same_tokens(correction):
    rollouts, logprobs = batches.make(seed=4, large=False)
    penalty = {"reference_policy_kl_penalty": 0.1}
    theirs, ours, *_ = both(build("grpo", correction), rollouts, logprobs, **penalty)
    torch.testing.assert_close(theirs[0], ours[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["grpo", "etr", "dppo_tv"])
def test_unbiased_kl_is_nemo_rls_approximation_with_k3(name):
    """Value and gradient, the sampler being the old policy; no token's KL reaches its clamp."""
    rollouts, logprobs = batches.make(seed=4, large=False)
    theirs = {"reference_policy_kl_penalty": 0.1, "use_on_policy_kl_approximation": True}
    ours = {"reference_policy_kl_penalty": 0.1, "reference_policy_kl_type": "unbiased"}
    algorithm = build(name, {"bypass_mode": True})
    agree(*both(algorithm, rollouts, logprobs, theirs, **ours)[:2])
    with pytest.raises(AssertionError):
        ours["reference_policy_kl_type"] = "k3"
        agree(*both(algorithm, rollouts, logprobs, theirs, **ours)[:2])


def test_rejected_sequences_leave_both_masks_and_masked_ones_stay():
    rollouts, _ = batches.make(seed=3, large=False)
    data = nemo_batch.batch(build("grpo", REJECTING), rollouts)
    corrected, _ = build("grpo", REJECTING).correct(rollouts)
    assert torch.equal(data["token_mask"][:, 1:].bool(), corrected.mask)
    assert torch.equal(data["sample_mask"].bool(), corrected.mask.any(1))
    assert 0 < corrected.mask.any(1).sum() < rollouts.mask.any(1).sum()
    untouched = nemo_batch.batch(build("grpo", WEIGHED), rollouts)
    assert torch.equal(untouched["token_mask"][:, 1:].bool(), rollouts.mask)


def test_weights_travel_as_a_column_and_only_they():
    names = {build("grpo", c).correction: columns.names(build("grpo", c)) for c in ({}, WEIGHED)}
    assert list(names.values()) == [
        {},
        {"rollout_is_weights": "nemo_algos_signal_rollout_is_weights"},
    ]
    assert columns.names(build("grpo", BYPASS["rejecting"])) == {}


def test_the_share_that_is_rejected_is_the_embedded_engines():
    rollouts, logprobs = batches.make(seed=3, large=False)
    algorithm = build("etr", BYPASS["rejecting"])
    *_, metrics, stats = both(algorithm, rollouts, logprobs)
    assert 0 < metrics[REJECTED] < 1
    assert metrics[REJECTED] == pytest.approx(stats.summary()[REJECTED], rel=1e-6)


def test_a_weight_of_0_silences_an_infinite_ratio():
    """NeMo-RL's own ratio of GRPO overflows there; 0 times infinity would be NaN."""
    rollouts, logprobs = batches.make(seed=3, large=False)
    row, position = rollouts.mask.nonzero()[0].tolist()
    logprobs[row, position] = rollouts.gen_logprobs[row, position] + 1000
    theirs, ours, *_ = both(build("grpo", BYPASS["rejecting"]), rollouts, logprobs)
    agree(theirs, ours)
    assert theirs[0].isfinite() and theirs[1][row, position] == 0


def test_a_log_prob_that_is_not_finite_is_not_taken_for_rejected():
    rollouts, logprobs = batches.make(seed=3, large=False)
    algorithm = build("etr", BYPASS["rejecting"])
    signals = algorithm.signals(algorithm.correct(rollouts)[0])
    weighty = signals.advantages.abs() * rollouts.mask
    logprobs.view(-1)[weighty.argmax()] = torch.nan
    value, *_ = nemo_batch.through(algorithm, rollouts, logprobs)
    assert value.isnan()


def test_what_needs_a_forward_of_its_own_is_refused():
    with pytest.raises(ConfigError, match="entropies"):
        build("erpo", BYPASS["old is the sampler"])
