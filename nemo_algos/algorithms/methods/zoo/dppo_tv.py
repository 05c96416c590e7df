"""DPPO, binary TV: a trust region of probabilities instead of ratios, arXiv 2602.04879.

    J = mean sg[w] A log pi    w = min(r, cap) while q - p <= high (A > 0) or >= -low (A < 0),
                               else 0; p, q: a token's probability under pi_old and pi_theta,
                               r = q / p

Why: a ratio of 2 moves a token from 0.001 to 0.002, which is nothing, and from 0.4 to 0.8, which
is a lot; clips cut the first and allow much of the second. A limit on q - p treats both as what
they are.

q - p <= high is r <= 1 + high / p: the masks are bounds per token, combine as bounds do and count
as clips. verl has its actor's clip_ratio_c of 3 as the cap. J has the paper's gradient; its value
is the score form's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal, Signals
from nemo_algos.algorithms.record import OfBounds, Params

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


class TVBounds(Params):
    """How far a token's probability may move."""

    low: OfBounds[float] = Field(default=0.2, gt=0)
    """How far a token's probability may fall where A < 0."""
    high: OfBounds[float] = Field(default=0.2, gt=0)
    """How far it may rise where A > 0."""


class TVParams(TVBounds):
    """A limit of the ratio beside."""

    cap: float = Field(default=20.0, gt=1)
    """The largest weight."""


def bounds(rollouts: Rollouts, params: TVBounds) -> Signal:
    """[1 - low / p, 1 + high / p], [B,S]."""
    dtype = core.surrogate.working_dtype(rollouts.old_logprobs)
    inverse = rollouts.old_logprobs.to(dtype).where(rollouts.mask, 0.0).neg().exp()
    return Signal((params.low * inverse, params.high * inverse))


def masked_ratio(log_ratio: Tensor, signals: Signals) -> Tensor:
    """r_t within the bound that the sign of A_i says, else 0, [B,S]."""
    ratio = log_ratio.exp()
    below = ratio <= 1 + signals.high
    above = ratio >= 1 - signals.low
    return ratio.where(below.where(signals.advantages > 0, above), 0.0)


def reweight(log_ratio: Tensor, mask: Tensor, signals: Signals, params: TVParams) -> Tensor:
    """A'_it = min(r_t, cap) A_i within the bounds, else 0, [B,S]."""
    return masked_ratio(log_ratio, signals).clamp(max=params.cap) * signals.advantages


DPPO_TV = Method(
    name="dppo_tv",
    paper="DPPO (binary TV), arXiv 2602.04879",
    params=TVParams,
    bounds=bounds,
    reweight=reweight,
    per_token=frozenset({"bounds"}),
    form="logprob",
    clips="weight",
    mean="token",
)
