"""Dr. GRPO: GRPO without the two divisions that bias it, arXiv 2503.20783.

    A_i = (R_i - mean) |o_i| / max_tokens                               sequence mean of the ratio

Why: GRPO divides by each response's length, so a long wrong response is punished less per token,
and by the group's std, so prompts that are nearly solved or nearly hopeless weigh more. A constant
divisor gives every token and every prompt the same weight.

TRL divides by all rows, empty ones too; prime-rl's GRPO has these advantages with a token mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms.kernel import Method, Signal, group_advantages
from nemo_algos.algorithms.record import ClipParams, OfAdvantages, Std

if TYPE_CHECKING:
    from nemo_algos.algorithms.rollouts import Rollouts


class DrGRPOParams(ClipParams):
    """GRPO's clip range, a constant divisor, no std."""

    advantage_std: OfAdvantages[Std] = "none"
    max_tokens: OfAdvantages[int] = Field(default=3000, ge=1)
    """Constant divisor. Default: the trainer's limit of a response."""


def advantages(rollouts: Rollouts, params: DrGRPOParams) -> Signal:
    """A_i = (R_i - mean) |o_i| / max_tokens, [B]."""
    return Signal(group_advantages(rollouts, params).value * rollouts.lengths / params.max_tokens)


DR_GRPO = Method(
    name="dr_grpo",
    paper="Dr. GRPO, arXiv 2503.20783",
    params=DrGRPOParams,
    advantages=advantages,
    needs=frozenset({"sequence_mean"}),
)
