"""VESPO, variational sequence-level soft policy optimization, arXiv 2602.10693.

    J = mean sg[phi(W)] A log pi    phi = W^k exp(lambda (1 - W)), W = exp(sum_t l_t),
                                    k and lambda by the sign of A

Why: the ratio of a whole response is the exact weight of off-policy data, and its variance
explodes with the length. phi is 1 at W = 1 and goes to 0 for small and large W, smoothly: no
response rules a batch, and none is cut off.

The sum of log pi over a response is a token mean, as in TRL's code. TRL puts its correction for
the sampler into W; here `loss_fn`'s multiplies the loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signals, no_bounds
from nemo_algos.algorithms.methods.zoo.topr import log_product
from nemo_algos.algorithms.record import Params

if TYPE_CHECKING:
    from torch import Tensor


class VESPOParams(Params):
    """k shapes phi below W = 1, lambda above it."""

    k_positive: float = Field(default=2.0, ge=0)
    """k where A >= 0."""
    lambda_positive: float = Field(default=3.0, gt=0)
    """lambda where A >= 0."""
    k_negative: float = Field(default=3.0, ge=0)
    """k where A < 0."""
    lambda_negative: float = Field(default=2.0, gt=0)
    """lambda where A < 0."""


def reweight(log_ratio: Tensor, mask: Tensor, signals: Signals, params: VESPOParams) -> Tensor:
    """A'_i = phi(W_i) A_i, [B,1]."""
    A = signals.advantages
    k = A.new_full(A.shape, params.k_negative).masked_fill(A >= 0, params.k_positive)
    decay = A.new_full(A.shape, params.lambda_negative).masked_fill(A >= 0, params.lambda_positive)
    return (k * log_ratio - decay * core.surrogate.expm1(log_ratio)).exp() * A


VESPO = Method(
    name="vespo",
    paper="VESPO, arXiv 2602.10693",
    params=VESPOParams,
    constant_bounds=no_bounds,
    log_ratio=log_product,
    reweight=reweight,
    form="logprob",
    clips=None,
    mean="token",
    needs=frozenset({"sequence_advantages"}),
)
