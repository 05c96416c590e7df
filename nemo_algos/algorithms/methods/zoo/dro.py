"""DRO, direct reward optimisation: a quadratic pull to pi_old and no ratio, arXiv 2405.19107.

    J = mean A log pi - beta / 2 l^2                                     A'_it = A_i - beta l_it

Why: offline data have no ratio worth trusting. Where A = beta l the gradient is 0: the target is
the regularised optimum, reached from data of any policy, without importance weights or clips.

The paper's policy term without its value function, and per token; verl's (no default beta) and
ROLL's "kimi15" (0.1) are this. The gradient is the paper's; the value is the score form's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms.kernel import Method, Signals, no_bounds
from nemo_algos.algorithms.methods.gpg import GPGParams

if TYPE_CHECKING:
    from torch import Tensor


class QuadraticParams(GPGParams):
    """The strength of the pull; no std, as gpg."""

    beta: float = Field(default=0.1, ge=0)
    """Weight of half the squared log-ratio (beta in DRO, tau in Kimi k1.5)."""

    @property
    def flat_group_is_inert(self) -> bool:
        return self.beta == 0


def reweight(log_ratio: Tensor, mask: Tensor, signals: Signals, params: QuadraticParams) -> Tensor:
    """A' = A - beta log r', of each token, [B,S], or of the response, [B,1].

    Beyond `max_log_ratio` the pull alone is left.
    """
    within_limit = log_ratio.abs() < params.max_log_ratio
    return signals.advantages.where(within_limit, 0.0) - params.beta * log_ratio


DRO = Method(
    name="dro",
    paper="DRO, arXiv 2405.19107",
    params=QuadraticParams,
    constant_bounds=no_bounds,
    reweight=reweight,
    form="logprob",
    clips=None,
    mean="token",
    flat_group_is_inert=False,
)
