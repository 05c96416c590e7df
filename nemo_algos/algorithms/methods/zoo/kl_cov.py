"""KL-Cov: the few tokens that cost the most entropy are pulled back to pi_old, arXiv 2505.22617.

    J = mean r A - kl_coef |l| on the share of tokens with the largest C_t         C_t: clip_cov.py

Why: Clip-Cov's answer to the same finding, softer: the tokens whose advantage and log-prob go
together most lose entropy fastest, so these, and no others, pay for each step away from pi_old.

C_t is that of pi_old, as in clip_cov.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal, Signals, no_bounds
from nemo_algos.algorithms.methods.zoo.clip_cov import covariance
from nemo_algos.algorithms.record import OfAdvantages, OfLoss, Params, Std

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


class KLCovParams(Params):
    """Which tokens are pulled back, and how hard."""

    advantage_std: OfAdvantages[OfLoss[Std]] = "sample"
    share: float = Field(default=2e-4, gt=0, le=1)
    """Share of the batch's tokens (the paper's k)."""
    kl_coef: float = Field(default=1.0, ge=0)
    """Weight of |l| there (beta)."""


def penalty_mask(rollouts: Rollouts, params: KLCovParams) -> Signal:
    """1 on the share of tokens with the largest covariance, else 0, [B,S]."""
    values = covariance(rollouts, params)
    return Signal(core.tokens.largest_share(values, rollouts.mask, params.share).double())


def reweight(log_ratio: Tensor, mask: Tensor, signals: Signals, params: KLCovParams) -> Tensor:
    """A'_it with r A'_it = r A_i - kl_coef sign(l) on the penalised: the gradient of -|l|."""
    slope = params.kl_coef * log_ratio.sign() * (-log_ratio).exp()
    return signals.advantages - signals.extras["penalised"] * slope


KL_COV = Method(
    name="kl_cov",
    paper="KL-Cov, arXiv 2505.22617",
    params=KLCovParams,
    constant_bounds=no_bounds,
    extras={"penalised": penalty_mask},
    reweight=reweight,
    per_token=frozenset({"penalised"}),
    clips=None,
    mean="token",
    flat_group_is_inert=False,
    whole_batch=True,
)
