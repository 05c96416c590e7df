"""GMPO: the geometric mean of one-sidedly clipped token ratios, J = mean_i A_i exp(mean_t t_it).

    t = sgn(A) min(sgn(A) l, bound),  bound = log_clip_high for A > 0, log_clip_low for A < 0

After GMPO's code in verl; apmpo.txt's eq. 14 lost the outer exponent sgn(A).
"""

from __future__ import annotations

from math import exp, expm1
from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos import core
from nemo_algos.methods.method import Method, Params, Part

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.methods.algorithm import Columns
    from nemo_algos.rollouts import Rollouts


class GMPOParams(Params):
    """Bounds of a token's log-ratio, nats."""

    log_clip_low: float = Field(default=0.4, ge=0)
    log_clip_high: float = Field(default=0.4, ge=0)


def bounds(rollouts: Rollouts, params: GMPOParams) -> Part:
    """[exp(-log_clip_low), exp(log_clip_high)], for tokens."""
    return Part((1 - exp(-params.log_clip_low), expm1(params.log_clip_high)))


def log_ratio(log_ratio: Tensor, columns: Columns, params: GMPOParams) -> Tensor:
    """mean_t of the one-sidedly clipped l_it, [B,1]."""
    clipped = core.surrogate.one_sided_clip(
        log_ratio, columns.advantages, columns.low, columns.high
    )
    return core.surrogate.sequence_mean(clipped, columns.mask)


GMPO = Method(
    name="gmpo",
    paper="GMPO, arXiv 2507.20673",
    params=GMPOParams,
    bounds=bounds,
    log_ratio=log_ratio,
    clips="token",
    ratio="sequence",
)
