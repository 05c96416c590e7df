"""REINFORCE with a running baseline, a moving average of the batches' mean rewards.

    A_i = R_i - b
    b <- decay b + (1 - decay) mean(R)          after each batch; before the first, its own mean

Why: any baseline that ignores the response leaves the gradient unbiased and lowers its variance.
A running mean needs neither groups nor a critic.

Then GRPO's clipped surrogate. `advantage_std` divides by the batch's deviation (masked rows aside),
and not at all where all rewards are equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Memory, Method, Signal
from nemo_algos.algorithms.record import ClipParams, OfAdvantages, Std

if TYPE_CHECKING:
    from nemo_algos.algorithms.rollouts import Rollouts


class EMABaselineParams(ClipParams):
    """The baseline's memory, and a division that REINFORCE has not."""

    advantage_std: OfAdvantages[Std] = "none"
    """A division by the batch's deviation."""
    decay: OfAdvantages[float] = Field(default=0.9, ge=0, lt=1)
    """Share of the old baseline that a rollout batch keeps."""


def advantages(rollouts: Rollouts, params: EMABaselineParams, memory: Memory) -> Signal:
    """A_i, [B]; it remembers b."""
    rewards, kept = rollouts.rewards, rollouts.kept
    if not kept.any():
        return Signal(rewards.new_zeros(rewards.shape), memory=memory)
    mean = float(rewards[kept].mean())
    b = memory.get("baseline", mean)
    scale = core.batch_statistics.deviation(rewards, kept, params.advantage_std)
    after = params.decay * b + (1 - params.decay) * mean
    return Signal((rewards - b) / scale, {"ema_baseline/baseline": b}, memory={"baseline": after})


EMA_BASELINE = Method(
    name="ema_baseline",
    paper="REINFORCE, Williams 1992",
    params=EMABaselineParams,
    advantages=advantages,
    flat_group_is_inert=False,
    needs=frozenset({"memory"}),
)
