"""GMPO: the geometric mean of one-sidedly clipped token ratios, J = mean_i A_i exp(mean_t t_it).

    t = sgn(A) min(sgn(A) l, bound),  bound = log_clip_high for A > 0, log_clip_low for A < 0

After GMPO's code in verl (docs/methods/gmpo.md).
"""

from __future__ import annotations

from math import exp, expm1
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signals
from nemo_algos.algorithms.record import OfBounds, Params, Usual

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.shapes import Mask, PerToken


class GMPOParams(Params):
    """Bounds of a token's log-ratio, nats."""

    log_clip_low: OfBounds[Annotated[float, Usual(0.05, 1)]] = Field(default=0.4, ge=0)
    """For A < 0."""
    log_clip_high: OfBounds[Annotated[float, Usual(0.05, 1)]] = Field(default=0.4, ge=0)
    """For A > 0."""


def bounds(params: GMPOParams) -> tuple[float, float]:
    """[exp(-log_clip_low), exp(log_clip_high)], for tokens."""
    return 1 - exp(-params.log_clip_low), expm1(params.log_clip_high)


def log_ratio(log_ratio: PerToken, mask: Mask, signals: Signals, params: GMPOParams) -> Tensor:
    """mean_t of the one-sidedly clipped l_it, [B,1]."""
    A = signals.advantages
    low = signals.low
    high = signals.high
    clipped = core.surrogate.one_sided_clip(log_ratio, A, low, high)
    return core.surrogate.sequence_mean(clipped, mask)


GMPO = Method(
    name="gmpo",
    paper="GMPO, arXiv 2507.20673",
    params=GMPOParams,
    constant_bounds=bounds,
    log_ratio=log_ratio,
    clips="token",
    ratio="sequence",
)
