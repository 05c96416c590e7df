"""A step's metrics, and the correction for a sampler that disagrees with the trainer."""

import math

import pytest
import torch
import trainers
from rounding import rounding
from trainers import GROUP, ROWS, update

from nemo_algos.algorithms.methods import STUDIED
from nemo_algos.engines.data.schema import DataSection

KL = "loss_fn.reference_policy_kl_penalty=0.05"

EVERY_STEP = [
    "reward/mean",
    "reward/positive_share",
    "reward/unverified",
    "groups/flat_share",
    "length/mean",
    "length/max",
    "length/empty_share",
    "advantage/mean",
    "advantage/std",
    "advantage/max",
    "entropy/exact",
    "entropy/approximate",
    "loss",
    "nonfinite_tokens",
    "grad_norm",
    "lr",
    "clip/fraction",
    "clip/positive_above",
    "clip/positive_below",
    "clip/negative_above",
    "clip/negative_below",
    "ratio/mean",
    "ratio/p99",
    "ratio/max",
    "ratio/clamped_tokens",
    "ratio/clamped_sequences",
    "kl/old",
    "kl/old_sequence",
    "time/seconds",
    "time/generate",
    "tokens_per_second",
]


@pytest.mark.parametrize("method", [*STUDIED, "clip_high", "dapo"])
def test_a_step_has_its_metrics_and_they_are_finite(method):
    made = trainers.trainer(KL, method=method)
    metrics = made.step()
    assert {*EVERY_STEP, "kl/ref", "kl_loss"} <= set(metrics)
    assert not [k for k, v in metrics.items() if not math.isfinite(v)]
    own = [k for k in metrics if k.startswith(f"{method}/")]
    with_own = ("etr", "quatro", "erpo", "apmpo", "spo", "ema_baseline")
    assert len(own) <= 6 and (len(own) > 0) == (method in with_own)


def test_without_a_reference_there_is_no_kl_to_it():
    plain = update(method="grpo")[1]
    assert set(EVERY_STEP) <= set(plain) and not {"kl/ref", "kl_loss"} & set(plain)


def test_a_step_of_flat_groups_alone_is_no_update_and_has_its_metrics():
    task = trainers.MadeUp(DataSection(), 0)
    task.mixed = 99
    got, metrics = update(task=task)
    assert not got.any() and not [k for k, v in metrics.items() if not math.isfinite(v)]
    assert [metrics[k] for k in ("groups/flat_share", "loss", "grad_norm")] == [1, 0, 0]
    assert metrics["reward/mean"] == 0.5 and metrics["advantage/max"] == 0


def test_metrics_of_the_batch_by_hand():
    made = trainers.trainer()
    experience, rollouts = made.collect()
    metrics = trainers.trainer().step()  # the same batch
    rewards, lengths = rollouts.rewards, [len(r) for r in experience.responses()]
    groups = rewards.view(-1, GROUP)
    signals = made.algorithm.signals(rollouts)
    spread = signals.advantages.expand_as(rollouts.mask)[rollouts.mask]
    want = {
        "reward/mean": rewards.mean(),
        "reward/positive_share": (rewards > 0).double().mean(),
        "groups/flat_share": (groups == groups[:, :1]).all(1).double().mean(),
        "length/mean": sum(lengths) / ROWS,
        "length/max": max(lengths),
        "entropy/exact": experience.entropy.sum() / sum(lengths),
        "advantage/std": spread.std(correction=0),
        "nonfinite_tokens": 0,
        "tokens_per_second": sum(lengths) / metrics["time/seconds"],
    }
    assert {k: metrics[k] for k in want} == pytest.approx({k: float(v) for k, v in want.items()})
    assert 0.5 <= want["groups/flat_share"] < 1 and metrics["time/generate"] > 0


ON = "loss_fn.use_importance_sampling_correction=true"
KIND, HIGH, LOW = (
    f"loss_fn.truncated_importance_sampling_{k}" for k in ("type", "ratio", "ratio_min")
)


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ([], 1.0),
        ([ON], 2.0),
        ([ON, f"{KIND}=tis", f"{HIGH}=1.5"], 1.5),
        ([ON, f"{KIND}=tis", f"{HIGH}=8"], 2.0),
        ([ON, f"{KIND}=icepop", f"{HIGH}=1.5", f"{LOW}=0.5"], 0.0),
        ([ON, f"{KIND}=seq-mask-tis", f"{HIGH}=3", f"{LOW}=0.5"], 2.0),
        ([ON, f"{KIND}=seq-mask-tis", f"{HIGH}=1.9", f"{LOW}=0.5"], 0.0),
    ],
)
def test_off_policy_correction_weighs_by_the_samplers_own_logprobs(settings, factor):
    mismatched = trainers.Mismatched(trainers.policy().model, trainers.UP_TO_12)
    one_update = "policy.train_global_batch_size=32"
    plain, _ = update(one_update)
    got, metrics = update(one_update, *settings, trained=mismatched)
    torch.testing.assert_close(got, factor * plain, rtol=0, atol=rounding())
    assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-5)  # of pi_theta to pi_old, not to it
