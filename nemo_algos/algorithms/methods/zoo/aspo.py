"""ASPO, asymmetric importance sampling: the reciprocal ratio where A > 0, arXiv 2510.06062.

    J = mean sg[w] A log pi     w = min(1 / r, cap)    A > 0, while r <= 1 + clip_high, else 0
                                  = min(r, cap)        A < 0, while r >= 1 - clip_low, else 0

Why: where A > 0 the ratio gives the larger step to tokens that have already become likelier, and
those that fell behind wait. Its reciprocal does the opposite: they catch up.

The authors' code (Archer2.0) has the cap of 3 for both signs, and clips that differ by entropy;
their loss has other values and this gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms.kernel import Method, Signals
from nemo_algos.algorithms.record import ClipParams

if TYPE_CHECKING:
    from torch import Tensor


class ASPOParams(ClipParams):
    """GRPO's clip range, and a limit of the weight."""

    cap: float = Field(default=3.0, gt=1)
    """The largest weight, for both signs of A."""


def reweight(log_ratio: Tensor, mask: Tensor, signals: Signals, params: ASPOParams) -> Tensor:
    """A'_it = w_it A_i: the reciprocal ratio for A > 0, the ratio for A < 0, capped, masked."""
    A, ratio = signals.advantages, log_ratio.exp()
    flipped = log_ratio.neg().exp().where(ratio <= 1 + signals.high, 0.0)
    weight = flipped.where(A > 0, ratio.where(ratio >= 1 - signals.low, 0.0))
    return weight.clamp(max=params.cap) * A


ASPO = Method(
    name="aspo",
    paper="ASPO, arXiv 2510.06062",
    params=ASPOParams,
    reweight=reweight,
    form="logprob",
    clips="weight",
    mean="token",
)
