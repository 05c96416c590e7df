"""prime-rl's default loss until 2026-08: DPPO's masks and a quadratic pull to pi_old.

    J = mean sg[w] A log pi - kl_tau l^2, w = r while q - p <= high (A > 0) or >= -low, else 0

Why: a mask only stops a token's gradient, so nothing brings back a token that has left the region,
as many have in asynchronous training. The penalty, after Kimi K2.5's (arXiv 2602.02276), pulls
every token back, the further the harder.

After arXiv 2602.04879; its only loss is ipo now. p, q: a token's probability under pi_old and
pi_theta. The gradient is prime-rl's; the value is the score form's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms.kernel import Method, Signals
from nemo_algos.algorithms.methods.zoo import dppo_tv
from nemo_algos.algorithms.record import OfAdvantages, Std

if TYPE_CHECKING:
    from torch import Tensor


class PrimeRLParams(dppo_tv.TVBounds):
    """DPPO's masks, without its limit of the ratio and without std."""

    advantage_std: OfAdvantages[Std] = "none"
    kl_tau: float = Field(default=1e-3, ge=0)
    """Weight of l^2."""

    @property
    def flat_group_is_inert(self) -> bool:
        return self.kl_tau == 0


def reweight(log_ratio: Tensor, mask: Tensor, signals: Signals, params: PrimeRLParams) -> Tensor:
    """A'_it = r_t A_i within the bounds, else 0, less 2 kl_tau l_t, [B,S]."""
    weight = dppo_tv.masked_ratio(log_ratio, signals)
    weight = weight.where(log_ratio.abs() < params.max_log_ratio, 0.0)
    return weight * signals.advantages - 2 * params.kl_tau * log_ratio


PRIME_RL = Method(
    name="prime_rl",
    paper="prime-rl, after arXiv 2602.04879",
    params=PrimeRLParams,
    bounds=dppo_tv.bounds,
    reweight=reweight,
    per_token=frozenset({"bounds"}),
    form="logprob",
    clips="weight",
    mean="token",
    flat_group_is_inert=False,
)
