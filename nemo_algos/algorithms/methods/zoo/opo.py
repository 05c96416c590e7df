"""OPO, optimal reward baseline: the mean reward weighted by length, arXiv 2505.23585.

    A_i = R_i - b,   b = sum_j |o_j| R_j / sum_j |o_j|                                of the group

Why: the baseline of least variance weighs each reward by its response's squared gradient norm.
That norm grows about as the length, so the length-weighted mean comes close to it at no cost.

The paper's sum of log pi over a response is a token mean here, a constant factor apart. In a group
of one A is R in verl, 0 here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal
from nemo_algos.algorithms.methods.zoo.rloo import BaselineParams

if TYPE_CHECKING:
    from nemo_algos.algorithms.rollouts import Rollouts


def advantages(rollouts: Rollouts, params: BaselineParams) -> Signal:
    """A_i = R_i - sum_j |o_j| R_j / sum_j |o_j|, [B]."""
    groups, rewards, length = rollouts.groups, rollouts.rewards, rollouts.lengths.double()
    baseline = groups.sum(rewards * length) / groups.sum(length).clamp(min=1)
    gap = rewards - baseline[groups.index]
    return Signal(core.groups.scaled(gap, rewards, groups, params.advantage_std))


OPO = Method(
    name="opo", paper="OPO, arXiv 2505.23585", params=BaselineParams, advantages=advantages
)
