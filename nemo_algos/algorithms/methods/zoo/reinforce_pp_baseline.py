"""REINFORCE++-baseline: R less its group's mean, whitened over the batch, arXiv 2501.03262.

    A_i = (x_i - M) / sqrt(V + 1e-8), x_i = R_i - mean of the group
                                              M, V: mean and variance of x over the batch's tokens

Why: the group's mean takes out how hard the prompt is, and the batch's variance scales all prompts
alike, so no group's small std blows up an advantage.

ms-swift whitens by the sequences' std. In a group of one x is R in verl, 0 here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_algos.algorithms.kernel import Method, Signal, group_advantages
from nemo_algos.algorithms.methods.zoo.reinforce_pp import whitened
from nemo_algos.algorithms.methods.zoo.rloo import BaselineParams

if TYPE_CHECKING:
    from nemo_algos.algorithms.rollouts import Rollouts


def advantages(rollouts: Rollouts, params: BaselineParams) -> Signal:
    """R_i - mean of the group, whitened over the tokens of the batch, [B]."""
    return Signal(whitened(group_advantages(rollouts, params).value, rollouts))


REINFORCE_PP_BASELINE = Method(
    name="reinforce_pp_baseline",
    paper="REINFORCE++-baseline, arXiv 2501.03262",
    params=BaselineParams,
    advantages=advantages,
    flat_group_is_inert=False,
    whole_batch=True,
)
