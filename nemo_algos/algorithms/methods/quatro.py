"""QUATRO, query-adaptive trust region: an exact KL trust region per prompt instead of clipping.

    lambda_q = argmin_lambda  lambda (delta + log mean_i exp(R_i / lambda))              (eq. 11-13)
    A_i      = R_i / lambda_q - log mean_j exp(R_j / lambda_q)                              (eq. 15)
    J        = mean_i s_i (A_i - sg[log s_i])                                           (eq. 14, 35)

with s_i = exp(sum_t l_it) (`sequence`: delta bounds the KL of whole responses, eq. 7) or exp(mean_t
l_it) (`geometric_mean`, remark 3.4: GSPO's ratio). Two methods: with `sequence` the gradient is
|o_i| times larger. A flat group has A = 0 and lambda = 0, and is not inert: -s log s still pulls
back to pi_old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import DriverOutput, Method, Signals, no_bounds
from nemo_algos.algorithms.record import OfAdvantages, Params, Undivided, Usual

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts
    from nemo_algos.algorithms.shapes import Mask, PerToken


class QUATROParams(Params):
    advantage_std: Undivided = "none"
    delta: OfAdvantages[Annotated[float, Usual(1e-4, 0.5)]] = Field(default=0.01, ge=1e-6)
    """KL radius of a prompt's trust region, nats."""
    ratio: Literal["sequence", "geometric_mean"] = "sequence"
    """s_i: product or geometric mean of a response's token ratios."""
    log_ratio_penalty: bool = True
    """Whether A is lowered by log s (eq. 14)."""
    max_kl_fraction: OfAdvantages[float] = Field(default=0.95, gt=0, lt=1)
    """Largest share of the KL that a group can reach at all."""

    @property
    def steep(self) -> bool:
        """Beyond its radius the product of ratios is."""
        return self.ratio == "sequence"


def advantages(rollouts: Rollouts, params: QUATROParams) -> DriverOutput:
    """A [B] and lambda [B] from the dual of each prompt, in float64 for all prompts at once."""
    groups = rollouts.groups
    rewards = rollouts.rewards
    radius = core.dual.kl_radius(rewards, groups, params.delta, params.max_kl_fraction)
    values, lam = core.dual.solve(rewards, groups, radius)
    signal = ~groups.flat(rewards)
    metrics = {"quatro/capped_share": float((signal & (radius < params.delta)).double().mean())}
    if signal.any():
        metrics["quatro/lambda"] = float(lam[signal].mean())
    return DriverOutput(values, metrics, {"lambda": lam[groups.index]})


def log_ratio(log_ratio: PerToken, mask: Mask, signals: Signals, params: QUATROParams) -> Tensor:
    """log s_i, [B,1]: the sum or the mean of the response's token log-ratios."""
    if params.ratio == "sequence":
        return core.surrogate.sequence_sum(log_ratio, params.max_log_ratio)
    return core.surrogate.sequence_mean(log_ratio, mask)


def reweight(log_ratio: PerToken, mask: Mask, signals: Signals, params: QUATROParams) -> Tensor:
    """A' = A - sg[log s]."""
    if params.log_ratio_penalty:
        return signals.advantages - log_ratio
    return signals.advantages


QUATRO = Method(
    name="quatro",
    paper="QUATRO, eq. 11-17",
    params=QUATROParams,
    advantages=advantages,
    constant_bounds=no_bounds,
    log_ratio=log_ratio,
    reweight=reweight,
    clips=None,
    ratio="sequence",
    flat_group_is_inert=False,
    usual_group=4,
)
