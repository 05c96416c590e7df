"""ETR, elastic trust regions: GRPO whose clip radius grows with advantage and uncertainty.

    radius_i = clip_base + micro tanh(A_i) + macro 4 p_g (1 - p_g)                 (eq. 6-8, Alg. 1)
    J        = mean_i mean_t min(r_it A_i, clip(r_it, 1 - radius_i, 1 + radius_i) A_i)       (eq. 9)

p_g is the share of the group's rewards that are successes, above 0. The theorem's eps * sqrt(rho)
form is not what Algorithm 1 runs; we run Algorithm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import DriverOutput, Method
from nemo_algos.algorithms.record import OfAdvantages, OfBounds, Params, Std, TokenClip, Usual

if TYPE_CHECKING:
    from nemo_algos.algorithms.rollouts import Rollouts


class ETRParams(Params):
    """The bounds stay inside (0, 2)."""

    advantage_std: OfAdvantages[OfBounds[Std]] = "sample"
    clip_base: OfBounds[TokenClip] = 0.2
    """Radius of a token's ratio around 1, the paper's epsilon."""
    micro: OfBounds[Annotated[float, Usual(0, 0.3)]] = Field(default=0.1, ge=0)
    """lambda_1: how far a response's advantage widens or narrows its radius."""
    macro: OfBounds[Annotated[float, Usual(0, 0.3)]] = Field(default=0.1, ge=0)
    """lambda_2: how far a group's uncertainty, 4 p (1 - p), widens it."""
    direction: OfBounds[Literal["asymmetric", "inverse"]] = "asymmetric"
    """inverse: the ablation of fig. 6, -micro."""
    success_reward: OfBounds[str | None] = None
    """Name of the reward part that is above 0 for a success. Default: the whole reward."""

    @model_validator(mode="after")
    def _radius_in_range(self) -> ETRParams:
        if self.micro >= self.clip_base:
            raise ValueError(
                f"micro={self.micro} must be below clip_base={self.clip_base}, or the radius can "
                "reach 0. Lower micro."
            )
        largest = self.clip_base + self.micro + self.macro
        if largest >= 1:
            raise ValueError(
                f"clip_base + micro + macro = {largest:g} must be below 1, or the lower bound can "
                "reach 0. Lower one of them."
            )
        return self


def bounds(rollouts: Rollouts, params: ETRParams) -> DriverOutput:
    """[1 - radius_i, 1 + radius_i]; A_i is GRPO's, also where the loss takes another method's A."""
    groups = rollouts.groups
    advantages = core.groups.advantages(rollouts.rewards, groups, params.advantage_std)  # [B]
    sign = 1 if params.direction == "asymmetric" else -1
    p = groups.mean(core.groups.succeeded(rollouts.column(params.success_reward)))[groups.index]
    elastic = sign * params.micro * advantages.tanh()
    radius = params.clip_base + elastic + params.macro * 4 * p * (1 - p)
    sides = {"positive": radius[advantages > 0], "negative": radius[advantages < 0]}
    metrics = {}
    for k, x in sides.items():
        if len(x):
            metrics[f"etr/radius_{k}"] = float(x.mean())
    return DriverOutput((radius, radius), metrics, reports={"clip_radius": radius})


ETR = Method(
    name="etr",
    paper="Elastic Trust Regions, eq. 6-9",
    params=ETRParams,
    bounds=bounds,
    success=frozenset({"bounds"}),
    usual_group=4,
)
