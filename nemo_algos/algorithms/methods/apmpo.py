"""APMPO: a power mean over a response's tokens (PMPO), clip bounds fed back from rewards (FAC).

    p       = exp(-gamma mu_R)                                                               (eq. 4)
    FSS     = mu_R / (sigma_R + 1e-6)                                                        (eq. 5)
    eps_ada = clip_min + (clip_max - clip_min) tanh(FSS)                                     (eq. 6)
    J_i     = sgn(A_i) [ mean_t |min(r_it A_i, clip(r_it, 1-clip_low, 1+eps_ada) A_i)|^p ]^(1/p)
            (eq. 9)

As a surrogate: with u_t the clipped ratio and w_t = sg[(M_p(u) / u_t)^(1-p)], mean_t w_t U_t = J_i,
value and gradient. Clipped tokens count in the mean and pass no gradient. Algorithm 1's line 18
drops the tanh of eq. 6; we keep eq. 6.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import DriverOutput, Method, Signals
from nemo_algos.algorithms.record import (
    OfAdvantages,
    OfBounds,
    OfLoss,
    Params,
    Std,
    TokenClip,
    Usual,
)
from nemo_algos.findings import refuse_first

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts
    from nemo_algos.algorithms.shapes import Mask, PerToken


class APMPOParams(Params):
    """gamma = 0 leaves only FAC ("+FAC" of table 6), clip_max = clip_min only PMPO."""

    advantage_std: OfAdvantages[Std] = "population"
    gamma: Annotated[float, Usual(0, 2)] = Field(default=0.8, ge=0)
    """How fast the power mean's exponent falls as rewards rise."""
    clip_min: OfBounds[TokenClip] = Field(default=0.2, ge=0)
    """Smallest upper bound, at a stability of 0."""
    clip_max: OfBounds[Annotated[float, Usual(0.05, 0.8)]] = Field(default=0.4, ge=0)
    """Largest upper bound, at full stability."""
    clip_low: OfBounds[TokenClip] = Field(default=0.2, ge=0, lt=1)
    """Lower bound's distance from 1."""
    statistics: OfBounds[OfLoss[Literal["batch", "group"]]] = "batch"
    """mu_R and sigma_R over the batch (the paper's text) or the group (its Algorithm 1)."""
    exponent: Literal["exponential", "linear"] = "exponential"
    """p = exp(-gamma mu_R), or 1 - gamma mu_R."""
    stability: OfBounds[Literal["fss", "mean", "inverse_std"]] = "fss"
    """What eps_ada follows; the last two are ablations (table 8)."""
    symmetric: OfBounds[bool] = False
    """Whether eps_ada is the lower bound too."""
    success_reward: OfBounds[OfLoss[str | None]] = None
    """Name of the reward part for mu_R and sigma_R. Default: the whole reward."""

    @property
    def whole_batch(self) -> bool:
        """Whether a batch without its flat groups would have other statistics."""
        return self.statistics == "batch"

    @model_validator(mode="after")
    def _in_range(self) -> APMPOParams:
        refuse_first(
            (
                self.exponent == "linear" and self.gamma >= 1,
                f"gamma={self.gamma} makes the linear exponent 1 - gamma mu_R reach 0. Lower it.",
            ),
            (
                self.clip_max < self.clip_min,
                f"clip_max={self.clip_max} is below clip_min={self.clip_min}. Raise it.",
            ),
            (
                self.symmetric and self.clip_max >= 1,
                f"symmetric bounds need clip_max below 1, got {self.clip_max}",
            ),
        )
        return self


def _reward_moments(rollouts: Rollouts, params: APMPOParams) -> tuple[Tensor, Tensor]:
    """mu_R and sigma_R, [B]: of the batch but for masked rows (paper) or group (Algorithm 1).

    R is the reward, or the part of it that `success_reward` names.
    """
    rewards = rollouts.column(params.success_reward)
    groups = rollouts.groups
    if params.statistics == "group":
        return groups.mean(rewards)[groups.index], groups.std(rewards)[groups.index]
    kept = rewards[rollouts.kept] if rollouts.kept.any() else rewards
    return kept.mean().expand_as(rewards), kept.std(correction=0).expand_as(rewards)


def bounds(rollouts: Rollouts, params: APMPOParams) -> DriverOutput:
    """[1 - clip_low, 1 + eps_ada] (symmetric: 1 -+ eps_ada), [B]."""
    mu, sigma = _reward_moments(rollouts, params)
    fss = mu / (sigma + core.groups.EPS)
    choices = {"fss": fss, "mean": mu, "inverse_std": 1 / (sigma + core.groups.EPS)}
    stability = choices[params.stability].tanh()
    high = params.clip_min + (params.clip_max - params.clip_min) * stability
    low = high if params.symmetric else params.clip_low
    metrics = {"apmpo/eps_ada": float(high.mean()), "apmpo/fss": float(fss.mean())}
    return DriverOutput((low, high), metrics, {"clip_high": high})


def exponent(rollouts: Rollouts, params: APMPOParams) -> DriverOutput:
    """The exponent p, [B]: near 1 (arithmetic mean) while rewards are rare, then smaller."""
    mu, _ = _reward_moments(rollouts, params)
    exponential = params.exponent == "exponential"
    p = (-params.gamma * mu).exp() if exponential else 1 - params.gamma * mu
    return DriverOutput(p, {"apmpo/exponent": float(p.mean())})


def reweight(log_ratio: PerToken, mask: Mask, signals: Signals, params: APMPOParams) -> Tensor:
    """A'_it = A_i w_it with w_t = (M_p(u) / u_t)^(1-p), in log space, [B,S]."""
    A = signals.advantages
    p = signals.extras["exponent"]
    log_u = core.surrogate.one_sided_clip(log_ratio, A, signals.low, signals.high)
    exponential = params.exponent == "exponential"
    least = math.exp(-params.gamma) if exponential else 1 - params.gamma  # a mean reward of 1
    log_mean = core.tokens.log_power_mean(log_u, mask, p, least)
    return (log_mean - log_u).mul_(1 - p).exp_().mul_(A)


APMPO = Method(
    name="apmpo",
    paper="APMPO, eq. 4-10",
    params=APMPOParams,
    bounds=bounds,
    extras={"exponent": exponent},
    reweight=reweight,
    needs=frozenset({"unit_rewards", "sequence_advantages"}),
    success=frozenset({"bounds", "loss"}),
    usual_group=4,
)
