"""Correction and old_policy: sampler in embedded runs: what is weighed, rejected, left out."""

import pytest
import torch
import trainers
from rounding import rounding
from says import Says
from trainers import ROWS, update

from nemo_algos.config import ConfigError
from nemo_algos.engines.local.updates import Updates

ONE_UPDATE = "policy.train_global_batch_size=32"
PREFIX = "rollout_correction."


def mismatched():
    """pi / pi_sampler is 2 at every token."""
    return trainers.Mismatched(trainers.policy().model, trainers.UP_TO_12)


def block(**keys):
    return [f"{PREFIX}{k}={v}" for k, v in keys.items()]


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({"rollout_is": "token", "rollout_is_threshold": 8}, 2.0),
        ({"rollout_is": "token", "rollout_is_threshold": 1.5}, 1.5),
        ({"preset": "decoupled_token_is"}, 2.0),
        ({"preset": "decoupled_token_is", "rollout_is_batch_normalize": "true"}, 1.0),
        ({"rollout_is": "token", "rollout_is_threshold": "0.5_1.5"}, 0.0),
        ({"preset": "decoupled_geo_rs"}, 0.0),
        ({"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": 2.1}, 1.0),
    ],
)
def test_weights_and_rejections_by_hand(keys, factor):
    plain, _ = update(ONE_UPDATE)
    got, metrics = update(ONE_UPDATE, *block(**keys), trained=mismatched())
    torch.testing.assert_close(got, factor * plain, rtol=0, atol=rounding())
    assert metrics["mismatch/mean"] == pytest.approx(0.693, abs=1e-3)
    rejected = factor == 0 and "preset" in keys
    assert metrics["correction/rejected_tokens"] == rejected
    assert metrics["length/mean"] > 0 and metrics["length/empty_share"] == 0


def test_old_as_the_sampler_makes_every_first_ratio_the_mismatch():
    got, metrics = update(ONE_UPDATE, *block(bypass_mode="true"), trained=mismatched())
    assert metrics["ratio/mean"] == pytest.approx(2, rel=1e-4)
    assert not [k for k in metrics if k.startswith("mismatch/")]
    plain, _ = update(ONE_UPDATE)
    two, ratios = update(ONE_UPDATE, *block(bypass_mode="true"))
    torch.testing.assert_close(two, plain, rtol=0, atol=rounding())
    assert ratios["ratio/mean"] == pytest.approx(1, abs=1e-5)
    assert not torch.allclose(got, plain, atol=rounding())


def scored(made, monkeypatch):
    """The rows that are scored without gradient by pi_old."""
    rows, stock = [], Updates.logprobs

    def spy(self, score, experience, of):
        if score == made.policy.logprobs:
            rows.extend(of.tolist())
        return stock(self, score, experience, of)

    monkeypatch.setattr(Updates, "logprobs", spy)
    return rows


@pytest.mark.parametrize(("two", "wanted"), [("false", ROWS), ("true", 0)])
def test_no_forward_for_old_log_probs(two, wanted, monkeypatch):
    """With a reference both log-probs are of one forward, else; the reference's stays."""
    penalty = "loss_fn.reference_policy_kl_penalty=0.01"
    made = trainers.trainer(penalty, *block(bypass_mode=two), "logger.trace_period=0")
    rows = scored(made, monkeypatch)
    metrics = made.step()
    assert len(rows) == wanted and metrics["kl/ref"] > 0


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (
            [*block(bypass_mode="true"), "mismatch.stop_above=0.1"],
            "mismatch.stop_above: bypass_mode",
        ),
        (
            [*block(rollout_is="token"), "loss_fn.use_importance_sampling_correction=true"],
            "loss_fn.use_importance_sampling_correction: rollout_correction",
        ),
        (block(preset="decoupled_geo"), "rollout_correction.preset: decoupled_geo_rs"),
        ([*block(bypass_mode="true"), "method.name=m2po"], "rollout_correction: m2po bypass_mode"),
    ],
)
def test_refusals(overrides, found):
    with pytest.raises(ConfigError) as error:
        trainers.checked(*overrides)
    assert [str(f) for f in error.value.findings] == [Says(found)]
