"""CE-GPPO: a token beyond its clip keeps a gradient, arXiv 2509.20712.

    J = mean r_it A_i w_it    w_it = beta_low (1 - clip_low) / sg[r_it]    A < 0, r < 1 - clip_low
                                   = beta_high (1 + clip_high) / sg[r_it]  A > 0, r > 1 + clip_high
                                   = 1                                     else

Why: clipped tokens are mostly unlikely ones, whose gradients hold the entropy up (A > 0) or keep
it from growing (A < 0). Here they keep a gradient of the size that it has at the clip, times beta.

The betas are those of the authors' code, the clips DAPO's; GPPO (Klear-Reasoner, 2508.07629) has
both betas 1. Their code also cuts r at 3 for A < 0, which the paper does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms.kernel import Method, Signals
from nemo_algos.algorithms.record import ClipParams, OfBounds

if TYPE_CHECKING:
    from torch import Tensor


class CEGPPOParams(ClipParams):
    """DAPO's clip range, and how much gradient is left beyond it."""

    clip_high: OfBounds[float] = Field(default=0.28, ge=0)
    beta_low: float = Field(default=0.75, ge=0)
    """Share of the gradient that remains below 1 - clip_low; 0: none (beta_1)."""
    beta_high: float = Field(default=1.0, ge=0)
    """The same above 1 + clip_high (beta_2)."""


def reweight(log_ratio: Tensor, mask: Tensor, signals: Signals, params: CEGPPOParams) -> Tensor:
    """A'_it = A_i w_it, [B,S]."""
    A, ratio = signals.advantages, log_ratio.exp()
    low, high = 1 - signals.low, 1 + signals.high
    below = (A < 0) & (ratio < low)
    left = (params.beta_low * low / ratio).where(below, 1.0)
    return A * (params.beta_high * high / ratio).where((A > 0) & (ratio > high), left)


CE_GPPO = Method(
    name="ce_gppo",
    paper="CE-GPPO, arXiv 2509.20712",
    params=CEGPPOParams,
    reweight=reweight,
    clips="weight",
    mean="token",
)
