"""CISPO: every token keeps its gradient, J = token mean of sg[clip(r_it)] A_i log pi.

clip 0.2/0.2 is verl's default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signals
from nemo_algos.algorithms.record import ClipParams, OfBounds, Usual

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.shapes import Mask, PerToken


class CISPOParams(ClipParams):
    """The upper bound matters most: a token beyond it keeps its gradient, at the bound's weight."""

    clip_low: OfBounds[Annotated[float, Usual(0.05, 1)]] = Field(default=0.2, ge=0, le=1)
    clip_high: OfBounds[Annotated[float, Usual(0.05, 10)]] = Field(default=0.2, ge=0)


def reweight(log_ratio: PerToken, mask: Mask, signals: Signals, params: CISPOParams) -> Tensor:
    """A'_it = clip(r_it, 1 - clip_low, 1 + clip_high) A_i, [B,S]."""
    clipped = core.surrogate.clamp(log_ratio.exp(), 1 - signals.low, 1 + signals.high)
    return clipped * signals.advantages


CISPO = Method(
    name="cispo",
    paper="CISPO (MiniMax-M1), arXiv 2506.13585",
    params=CISPOParams,
    reweight=reweight,
    form="logprob",
    clips="weight",
    mean="token",
)
