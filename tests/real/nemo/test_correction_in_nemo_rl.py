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
from nemo_algos.engines.nemo import columns
from nemo_algos.engines.nemo.loss_metrics import REJECTED
from nemo_algos.findings import ConfigError

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


BATCH = {"seed": 3, "large": False}


@pytest.mark.parametrize(("name", "label"), CASES)
def test_agrees_with_the_embedded_engine(name, label):
    nemo_batch.assert_embedded(name, batches.make(**BATCH), (DECOUPLED | BYPASS)[label])


@pytest.mark.parametrize("label", DECOUPLED | BYPASS)
def test_the_kl_penalty_is_of_the_same_tokens(label):
    """Its value: the gradient of NeMo-RL's is another."""
    batch, correction = batches.make(seed=4, large=False), (DECOUPLED | BYPASS)[label]
    algorithm = build("grpo", correction)
    value, *_ = nemo_batch.through(algorithm, *batch, reference_policy_kl_penalty=0.1)
    corrected, _ = algorithm.correct(batch.rollouts)
    counts, config = Counts.of(corrected.mask), LossConfig(reference_policy_kl_penalty=0.1)
    signals = algorithm.signals(corrected, {})
    want = policy_loss(algorithm, batch.logprobs, corrected, signals, counts, config).value
    torch.testing.assert_close(value, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("preset", ["bypass_pg_is", "bypass_pg_token_icepop"])
def test_reinforce_with_the_weight_of_the_policy_as_it_is(preset):
    method = {"name": "gpg", "advantages": "grpo"}
    nemo_batch.assert_embedded(method, batches.make(**BATCH), {"preset": preset})


@pytest.mark.parametrize("name", ["grpo", "etr", "dppo_tv"])
def test_unbiased_kl_is_nemo_rls_approximation_with_k3(name):
    """Value and gradient, the sampler being the old policy; no token's KL reaches its clamp."""
    batch = batches.make(seed=4, large=False)
    theirs = {"reference_policy_kl_penalty": 0.1, "use_on_policy_kl_approximation": True}
    ours = {"reference_policy_kl_penalty": 0.1, "reference_policy_kl_type": "unbiased"}
    given = (name, batch, {"bypass_mode": True})
    nemo_batch.assert_embedded(*given, theirs=theirs, **ours)
    with pytest.raises(AssertionError):
        nemo_batch.assert_embedded(
            *given, theirs=theirs, **ours | {"reference_policy_kl_type": "k3"}
        )


def test_rejected_sequences_leave_both_masks_and_masked_ones_stay():
    rollouts, _ = batches.make(**BATCH)
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
    *_, metrics, summary = nemo_batch.assert_embedded(
        "etr", batches.make(**BATCH), BYPASS["rejecting"]
    )
    assert 0 < metrics[REJECTED] < 1
    assert metrics[REJECTED] == pytest.approx(summary[REJECTED], rel=1e-6)


def test_a_weight_of_0_silences_an_infinite_ratio():
    """NeMo-RL's own ratio of GRPO overflows there; 0 times infinity would be NaN."""
    rollouts, logprobs = batch = batches.make(**BATCH)
    row, position = rollouts.mask.nonzero()[0].tolist()
    logprobs[row, position] = rollouts.gen_logprobs[row, position] + 1000
    value, gradient, *_ = nemo_batch.assert_embedded("grpo", batch, BYPASS["rejecting"])
    assert value.isfinite() and gradient[row, position] == 0


def test_a_log_prob_that_is_not_finite_is_not_taken_for_rejected():
    rollouts, logprobs = batches.make(**BATCH)
    algorithm = build("etr", BYPASS["rejecting"])
    signals = algorithm.signals(algorithm.correct(rollouts)[0])
    weighty = signals.advantages.abs() * rollouts.mask
    logprobs.view(-1)[weighty.argmax()] = torch.nan
    value, *_ = nemo_batch.through(algorithm, rollouts, logprobs)
    assert value.isnan()


def test_what_needs_a_forward_of_its_own_is_refused():
    with pytest.raises(ConfigError, match="entropies"):
        build("erpo", BYPASS["old is the sampler"])
