"""Pass@k as objective, with k the group: only the best response learns, arXiv 2503.19595.

    A_i = R_i - R_second                       the single best response; 0 for the others, and ties

Why: the mean reward pays for making one solution likelier, which costs diversity. The best reward
of a group rises by what its best response adds to the second best, so that lead is the advantage.

verl divides by the group's std unless told not to (`advantage_std: sample`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import model_validator

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal
from nemo_algos.algorithms.methods.zoo.rloo import BaselineParams

if TYPE_CHECKING:
    from nemo_algos.algorithms.rollouts import Rollouts


class PassAtKParams(BaselineParams):
    """No advantage is negative, so of the clips only clip_high acts."""

    @model_validator(mode="after")
    def _none_is_negative(self) -> PassAtKParams:
        if idle := [key for key in self.changed if key in ("clip_low", "dual_clip")]:
            reason = "its advantages are never negative"
            raise ValueError(f"`{idle[0]}` has no effect in pass_at_k: {reason}. Remove it.")
        return self


def advantages(rollouts: Rollouts, params: PassAtKParams) -> Signal:
    """A_i = R_i - R_second of the single best response, [B]; 0 for the others, and in a tie."""
    groups, rewards = rollouts.groups, rollouts.rewards
    best = rewards == groups.max(rewards)[groups.index]
    second = groups.max(rewards.masked_fill(best, -float("inf")))[groups.index]
    lead = (rewards - second).where(best & (groups.sum(best) == 1)[groups.index], 0.0)
    return Signal(core.groups.scaled(lead, rewards, groups, params.advantage_std))


PASS_AT_K = Method(
    name="pass_at_k",
    paper="Pass@k as objective, arXiv 2503.19595",
    params=PassAtKParams,
    advantages=advantages,
)
