"""RLOO, REINFORCE leave-one-out: the baseline is the mean of the others, arXiv 2402.14740.

    A_i = R_i - mean_{j != i} R_j = (R_i - mean) n / (n - 1)            n responses in the group

Why: a baseline that contains the response's own reward shrinks the gradient by (n - 1) / n. The
mean of the other responses does not depend on it: the gradient is unbiased, without a critic.

The paper's sum of log pi over a response is a token mean here, a constant factor apart. In a group
of one A is R in verl, 0 here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from nemo_algos.algorithms.kernel import Method, Signal, group_advantages
from nemo_algos.algorithms.record import ClipParams, OfAdvantages, Std

if TYPE_CHECKING:
    from nemo_algos.algorithms.rollouts import Rollouts


class BaselineParams(ClipParams):
    """Parameters of the methods that replace GRPO's advantage alone."""

    advantage_std: OfAdvantages[Std] = "none"
    """Also divide by the standard deviation of the group's rewards. The papers do not."""
    aggregation: Literal["sequence", "token"] = "token"
    """The mean of J."""


def advantages(rollouts: Rollouts, params: BaselineParams) -> Signal:
    """A_i = (R_i - mean) n / (n - 1), [B]: R_i less the mean of the others."""
    count = rollouts.groups.count.double()
    factor = (count / (count - 1).clamp(min=1))[rollouts.groups.index]
    return Signal(group_advantages(rollouts, params).value * factor)


RLOO = Method(
    name="rloo", paper="RLOO, arXiv 2402.14740", params=BaselineParams, advantages=advantages
)
