"""SAPO, soft adaptive policy optimization: a smooth gate instead of the clip, arXiv 2511.20347.

    J = mean f(r) A, f(r) = (4 / tau) sigmoid(tau (r - 1))                tau by the sign of A

Why: the clip's gradient is all or nothing. This gate has the slope of r at r = 1 and fades on both
sides, faster where A < 0, since pushing one token down lifts many that were never sampled.

f(1) = 2 / tau, so `ratio/mean` is near 2. verl's is a sequence mean whatever its config says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signals, no_bounds
from nemo_algos.algorithms.record import Params

if TYPE_CHECKING:
    from torch import Tensor


class SAPOParams(Params):
    """Temperatures of the gate; the larger, the sooner it fades."""

    tau_positive: float = Field(default=1.0, gt=0)
    """Temperature for tokens with A > 0 (tau_pos)."""
    tau_negative: float = Field(default=1.05, gt=0)
    """Temperature for tokens with A <= 0 (tau_neg); above tau_positive in the paper."""


def log_ratio(log_ratio: Tensor, mask: Tensor, signals: Signals, params: SAPOParams) -> Tensor:
    """log f(r_t), [B,S]."""
    A = signals.advantages
    tau = A.new_full(A.shape, params.tau_negative).masked_fill(A > 0, params.tau_positive)
    gate = (tau * core.surrogate.expm1(log_ratio)).neg().exp().log1p().neg()
    return (gate + (4 / tau).log()).where(mask, 0.0)


SAPO = Method(
    name="sapo",
    paper="SAPO, arXiv 2511.20347",
    params=SAPOParams,
    constant_bounds=no_bounds,
    log_ratio=log_ratio,
    clips=None,
)
