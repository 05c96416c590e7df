"""MaxRL, maximum likelihood of success: advantages over the success rate, arXiv 2602.02710.

    A_i = (R_i - mean) / mean                                      0 where no response succeeds

Why: the mean reward is the success rate p, and a prompt of small p adds little to its gradient. The
likelihood of success, log p, has 1 / p times that gradient, so hard prompts weigh as they should.

Rewards must lie in [0, 1]: with other rewards their mean is no success rate. The paper's sum of
log pi over a response is a token mean here, a constant factor apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_algos.algorithms.kernel import Method, Signal, group_advantages
from nemo_algos.algorithms.methods.zoo.rloo import BaselineParams

if TYPE_CHECKING:
    from nemo_algos.algorithms.rollouts import Rollouts


def advantages(rollouts: Rollouts, params: BaselineParams) -> Signal:
    """A_i = (R_i - mean) / p, p the rate of success, [B]; 0 where the group has no success."""
    rate = rollouts.groups.mean(rollouts.column(None))[rollouts.groups.index]
    return Signal((group_advantages(rollouts, params).value / rate).where(rate > 0, 0.0))


MAXRL = Method(
    name="maxrl",
    paper="MaxRL, arXiv 2602.02710",
    params=BaselineParams,
    advantages=advantages,
    needs=frozenset({"unit_rewards"}),
)
