"""ETR's radius where its golden numbers do not reach: flat groups, signs, limits."""

import pytest
import torch
from batches import change, close, make, run

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.loss_config import LossConfig


def radius(rewards, **params):
    """The radius of each sequence of a group, in the order of `rewards`, and its advantages."""
    batch = make(rewards=(tuple(float(i) for i in range(len(rewards))),))
    rollouts = change(batch, rewards=torch.tensor(rewards)[batch.rollouts.rewards.long()]).rollouts
    signals = build({"name": "etr", **params}).signals(rollouts)
    order = batch.rollouts.rewards.argsort()
    assert (signals.low == signals.high).all()
    assert (signals.reports["clip_radius"] == signals.high[:, 0]).all()
    return signals.high[order, 0]


def test_rewards_of_minus_1_count_as_wrong():
    close(radius([1.0] + [-1.0] * 7), radius([1.0] + [0.0] * 7), 1e-6)


def test_inverse_swaps_the_sign_of_the_advantage():
    both = radius([1.0] + [0.0] * 7) + radius([1.0] + [0.0] * 7, direction="inverse")
    close(both, 2 * (0.2 + 0.1 * 7 / 16))


@pytest.mark.parametrize("rewards", [[1.0] * 4, [0.0] * 4, [-1.0] * 4, [0.7]])
def test_flat_groups_keep_the_base(rewards):
    assert radius(rewards).tolist() == [0.2] * len(rewards)


def test_share_of_positive_rewards_in_a_flat_group():
    """Equal within the tolerance, one above 0: no advantage, but p = 1/2."""
    close(radius([1e-7, -1e-7]), 0.3)


def test_no_elasticity_is_grpo():
    batch = make()
    want = run({"name": "grpo", "clip_low": 0.3, "clip_high": 0.3}, batch, LossConfig())
    got = run({"name": "etr", "clip_base": 0.3, "micro": 0, "macro": 0}, batch, LossConfig())
    close(got.value, want.value)
    close(got.grad, want.grad)


def test_each_sequence_is_cut_at_its_own_radius():
    """A right answer's tokens pass up to 1 + radius, and no further."""
    batch = make(rewards=((1.0,) + (0.0,) * 7,), spread=0.4)
    high = radius([1.0] + [0.0] * 7)[0]
    row = int(batch.rollouts.rewards.argmax())
    inside = (batch.logprobs - batch.rollouts.old_logprobs)[row].exp() <= 1 + high
    on = batch.rollouts.mask[row]
    assert (on & inside).any() and (on & ~inside).any()
    grad = run("etr", batch, LossConfig()).grad[row]
    assert (grad[on & inside] != 0).all() and (grad[on & ~inside] == 0).all()
