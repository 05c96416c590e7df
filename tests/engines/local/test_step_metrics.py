"""A step's metrics: shares and means are of all response tokens, of flat groups too."""

import math
from dataclasses import replace

import pytest
import torch
import trainers
from rounding import rounding
from trainers import GROUP, ROWS, update

from nemo_algos.algorithms.core.metrics import Stats
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


def test_the_loss_is_the_mean_of_the_updates(monkeypatch):
    """And of its parts; an entropy's term leaves the sampling policy's entropy what it is."""
    terms = ["method.terms.entropy.coef=0.01", "method.terms.nll.coef=0.1"]
    several = ["grpo.num_update_epochs=2", "loss_fn.reference_policy_kl_penalty=0.1"]
    made = trainers.trainer(*terms, *several)
    losses = list[Stats]()
    accumulate = made.update.accumulate

    def spied(*given):
        losses.append(accumulate(*given))
        return losses[-1]

    monkeypatch.setattr(made.update, "accumulate", spied)
    metrics = made.step()
    assert len(losses) == 4  # two epochs of two optimizer batches
    for name in ("loss", "kl_loss", "terms/entropy", "terms/nll"):
        every = [float(each.sums[name]) for each in losses]
        assert metrics[name] == pytest.approx(sum(every) / 4, rel=1e-6) and len({*every}) == 4
    plain = trainers.trainer(*several).step()
    assert metrics["entropy/exact"] == plain["entropy/exact"]
    assert metrics["entropy/updated"] != pytest.approx(plain["entropy/exact"], abs=1e-6)


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
    mismatched = trainers.mismatched()
    one_update = "policy.train_global_batch_size=32"
    plain, _ = update(one_update)
    got, metrics = update(one_update, *settings, trained=mismatched)
    torch.testing.assert_close(got, factor * plain, rtol=0, atol=rounding())
    assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-5)  # of pi_theta to pi_old, not to it


COLUMNS = ["clip/fraction", "clip/positive_above", "clip/negative_below", "ratio/mean", "ratio/p99"]
COLUMNS += ["kl/old", "kl/old_sequence", "entropy/approximate"]
SEVERAL = ["grpo.num_update_epochs=3", "policy.train_global_batch_size=16"]


def mostly_flat():
    task = trainers.MadeUp(DataSection(), 0)
    task.mixed = 6  # of 8 groups
    return task


@pytest.mark.parametrize("more", [[], ["old_policy=sampler"]], ids=str)
def test_by_hand(more):
    """Ratio and gradient norm from the policy's own log-probs before each of the six updates."""
    made = trainers.trainer(*SEVERAL, *more, task=mostly_flat())
    experience, seen, norms = [], [], []
    collect = made.collect

    def collected():
        experience[:] = collect()
        return experience

    def before_an_update(optimizer, *_):
        batch, rows = experience[0], torch.arange(32).split(16)[len(norms) % 2]
        logprobs = made.policy.logprobs(batch, rows)
        seen.append((logprobs - batch.logprobs[rows])[batch.mask[rows]])
        grads = [p.grad.flatten() for p in made.update.parameters]
        norms.append(float(torch.cat(grads).norm()))

    made.collect = collected
    made.update.optimizer.register_step_pre_hook(torch.no_grad()(before_an_update))
    metrics = made.step()
    ratio = torch.cat(seen).double().exp()
    assert len(norms) == 6 and norms[0] == 0 < norms[1]
    assert metrics["grad_norm"] == pytest.approx(sum(norms) / 6, rel=1e-5)
    assert metrics["ratio/mean"] == pytest.approx(float(ratio.mean()), rel=1e-6)
    kl = (ratio - 1 - ratio.log()).mean()
    assert metrics["kl/old"] == pytest.approx(float(kl), rel=1e-3)


class Broken(trainers.TinyPolicy):
    """Its first `rows` responses have log-probs that are NaN."""

    rows = 1

    def generate(self, prompts, group_size, generator):
        drawn = super().generate(prompts, group_size, generator)
        logprobs = drawn.logprobs.clone()
        logprobs[: self.rows] = torch.nan
        return replace(drawn, logprobs=logprobs)


def broken(rows, mixed):
    task = trainers.MadeUp(DataSection(), 0)
    task.mixed = mixed
    policy = Broken(trainers.policy().model, trainers.UP_TO_12)
    policy.rows = rows
    report = "loss_fn.on_nonfinite=report"
    return trainers.trainer(report, trained=policy, task=task)


@pytest.mark.parametrize("mixed", [4, 99])
def test_what_is_not_finite_is_counted_in_flat_groups_too(mixed):
    made = broken(1, mixed)
    metrics = made.step()
    made = broken(1, mixed)
    experience, _ = made.collect()
    assert metrics["nonfinite_tokens"] == experience.mask[0].sum() > 0


@pytest.mark.parametrize("mixed", [4, 99])
def test_a_batch_without_a_finite_token_ends_the_run(mixed):
    with pytest.raises(FloatingPointError):
        broken(trainers.ROWS, mixed).step()
