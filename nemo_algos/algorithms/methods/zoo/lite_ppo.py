"""Lite PPO: the group's mean, the batch's std, and a token mean, arXiv 2508.08221.

    A_i = (R_i - mean of the group) / (std of the batch's rewards + 1e-6)

Why: where nearly all of a group's rewards agree, its std is small and its few deviants get huge
advantages. The batch's std comes from many more rewards and is the same for every prompt.

ROLL's example adds whitening and a dual clip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal, group_advantages
from nemo_algos.algorithms.methods.zoo.rloo import BaselineParams

if TYPE_CHECKING:
    from nemo_algos.algorithms.rollouts import Rollouts


def advantages(rollouts: Rollouts, params: BaselineParams) -> Signal:
    """A_i = (R_i - mean) / (std of the batch's rewards + 1e-6), [B]."""
    rewards = rollouts.rewards[rollouts.kept]
    deviation = rewards.std(correction=1) if len(rewards) > 1 else rewards.new_zeros(())
    return Signal(group_advantages(rollouts, params).value / (deviation + core.groups.EPS))


LITE_PPO = Method(
    name="lite_ppo",
    paper="Lite PPO, arXiv 2508.08221",
    params=BaselineParams,
    advantages=advantages,
    whole_batch=True,
)
