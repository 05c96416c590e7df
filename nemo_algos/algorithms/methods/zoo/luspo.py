"""LUSPO, length-unbiased sequence policy optimization: GSPO times the length, arXiv 2602.05261.

    J = mean_i min(s_i A_i |o_i|, clip(s_i) A_i |o_i|), s_i = exp(mean_t l_t)

Why: GSPO weighs each response alike, so each token of a long one counts less, and responses
shrink. The factor |o_i| gives every token the same weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms.kernel import Method, Signal, group_advantages
from nemo_algos.algorithms.methods.gspo import log_ratio
from nemo_algos.algorithms.record import ClipParams, OfBounds

if TYPE_CHECKING:
    from nemo_algos.algorithms.rollouts import Rollouts


class LUSPOParams(ClipParams):
    """The paper's bounds, small as those of GSPO's own paper: a mean over tokens moves little."""

    clip_low: OfBounds[float] = Field(default=2e-3, ge=0, le=1)
    clip_high: OfBounds[float] = Field(default=2.5e-3, ge=0)


def advantages(rollouts: Rollouts, params: LUSPOParams) -> Signal:
    """A_i |o_i|, [B]."""
    return Signal(group_advantages(rollouts, params).value * rollouts.lengths)


LUSPO = Method(
    name="luspo",
    paper="LUSPO, arXiv 2602.05261",
    params=LUSPOParams,
    advantages=advantages,
    log_ratio=log_ratio,
    ratio="sequence",
    needs=frozenset({"sequence_mean"}),
    own=frozenset({"advantages"}),  # the ratio is gspo's
)
