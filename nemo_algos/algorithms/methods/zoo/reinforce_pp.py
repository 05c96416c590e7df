"""REINFORCE++: rewards whitened over all tokens of the batch, no groups, arXiv 2501.03262.

    A_i = (R_i - M) / sqrt(V + 1e-8)          M, V: mean and variance of R over the batch's tokens

Why: mean and std of a few responses depend on each response's own reward, which biases GRPO's
advantage. Those of a whole batch hardly do, and one response per prompt is enough.

The paper's KL in the reward is off here, as by verl's default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal
from nemo_algos.algorithms.methods.zoo.rloo import BaselineParams
from nemo_algos.algorithms.record import Undivided

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


class REINFORCEPPParams(BaselineParams):
    """The batch's deviation is the only one."""

    advantage_std: Undivided = "none"


def advantages(rollouts: Rollouts, params: REINFORCEPPParams) -> Signal:
    """A_i = (R_i - M) / sqrt(V + 1e-8), [B]; M, V: mean and variance of R over all tokens."""
    return Signal(whitened(rollouts.rewards, rollouts))


def whitened(values: Tensor, rollouts: Rollouts) -> Tensor:
    """[B] of mean 0 and variance 1 over the tokens of all responses; 0 where all are equal."""
    weight = rollouts.lengths * rollouts.kept
    if core.batch_statistics.equal(values[weight > 0]):
        return values.new_zeros(values.shape)
    tokens = weight.sum()
    centred = values - (values * weight).sum() / tokens
    return centred * ((centred.square() * weight).sum() / (tokens - 1) + 1e-8).rsqrt()


REINFORCE_PP = Method(
    name="reinforce_pp",
    paper="REINFORCE++, arXiv 2501.03262",
    params=REINFORCEPPParams,
    advantages=advantages,
    flat_group_is_inert=False,
    whole_batch=True,
)
