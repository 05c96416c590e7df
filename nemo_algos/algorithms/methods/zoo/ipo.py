"""IPO, prime-rl's only loss since 2026-08: a token that moved too far does not learn, either way.

    J = mean keep r A - kl_tau l^2, keep = |q - p| <= eps; p, q: a token's probability under pi_old
                                    and pi_theta, r = q / p

Why: DPPO masks a token only where its advantage pushes it further away. Here the sign of the
advantage does not matter: what has left the region is not evidence about this policy any more.

p is prime-rl's sampler's: set `old_policy: sampler`. |q - p| <= eps is two bounds of r, 1 - eps / p
and 1 + eps / p. With kl_tau the gradient is prime-rl's, and the value the score form's.
`clip/fraction` counts the side that a clip would cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal, Signals
from nemo_algos.algorithms.record import OfAdvantages, OfBounds, Params, Std

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


class IPOParams(Params):
    """How far a token's probability may be from its sampler's; no std."""

    advantage_std: OfAdvantages[Std] = "none"
    eps: OfBounds[float] = Field(default=0.3, gt=0)
    """Largest difference of a token's two probabilities, up or down."""
    kl_tau: float = Field(default=0.0, ge=0)
    """Weight of l^2."""

    @property
    def flat_group_is_inert(self) -> bool:
        return self.kl_tau == 0

    @property
    def score_form(self) -> bool:
        """The penalty pulls beyond `max_log_ratio` too, where a ratio has no gradient."""
        return self.kl_tau > 0


def bounds(rollouts: Rollouts, params: IPOParams) -> Signal:
    """[1 - eps / p, 1 + eps / p], [B,S]."""
    dtype = core.surrogate.working_dtype(rollouts.old_logprobs)
    inverse = rollouts.old_logprobs.to(dtype).where(rollouts.mask, 0.0).neg().exp()
    return Signal((params.eps * inverse, params.eps * inverse))


def reweight(log_ratio: Tensor, mask: Tensor, signals: Signals, params: IPOParams) -> Tensor:
    """A'_it = A_i within the bounds, else 0, [B,S]; with kl_tau r_t A_i less 2 kl_tau l_t."""
    ratio = log_ratio.exp()
    within = (ratio >= 1 - signals.low) & (ratio <= 1 + signals.high)
    kept = signals.advantages.where(within, 0.0)
    if not params.kl_tau:
        return kept
    within_limit = log_ratio.abs() < params.max_log_ratio
    return (ratio * kept).where(within_limit, 0.0) - 2 * params.kl_tau * log_ratio


IPO = Method(
    name="ipo",
    paper="IPO, prime-rl, after arXiv 2602.04879",
    params=IPOParams,
    bounds=bounds,
    reweight=reweight,
    per_token=frozenset({"bounds"}),
    clips="weight",
    mean="token",
    flat_group_is_inert=False,
)
