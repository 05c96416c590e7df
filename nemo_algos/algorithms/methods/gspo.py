"""GSPO: one ratio per sequence, s_i = exp(mean_t l_it); J = mean_i min(s_i A_i, clip(s_i) A_i).

clip 0.2/0.2 as in the comparisons of QUATRO (table I); GSPO's own paper uses 3e-4/4e-4
(gspo_paper.yaml).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signals
from nemo_algos.algorithms.record import ClipParams, OfBounds, SequenceClip

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.shapes import Mask, PerToken


class GSPOParams(ClipParams):
    """A response's mean log-ratio moves far less than a token's."""

    clip_low: OfBounds[SequenceClip] = Field(default=0.2, ge=0, le=1)
    clip_high: OfBounds[SequenceClip] = Field(default=0.2, ge=0)


def log_ratio(log_ratio: PerToken, mask: Mask, signals: Signals, params: GSPOParams) -> Tensor:
    """log s_i = mean_t l_it, [B,1]."""
    return core.surrogate.sequence_mean(log_ratio, mask)


GSPO = Method(
    name="gspo",
    paper="GSPO, arXiv 2507.18071",
    params=GSPOParams,
    log_ratio=log_ratio,
    ratio="sequence",
    stock=True,
)
