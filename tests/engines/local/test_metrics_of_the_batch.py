"""Shares and means are of all response tokens, of flat groups too, whose gradient is zero."""

from dataclasses import replace

import pytest
import torch
import trainers

from nemo_algos.engines.data.schema import DataSection

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
