"""GRPO's clipped surrogate with other advantages, from rewards R and lengths |o| of a group of n.

    dr_grpo      A = (R - mean) |o| / max_tokens: a sum over tokens, sequence mean      2503.20783
    rloo         A = (R - mean) n / (n - 1): the mean of the others                     2402.14740
    opo          A = R - sum_j |o_j| R_j / sum_j |o_j|                                  2505.23585
    maxrl        A = (R - mean) / mean, 0 where none succeeds                           2602.02710
    pass_at_k    A = R - R_second for the one best response, else 0 (k = n)             2503.19595
    lite_ppo     A = (R - mean) / std of the batch                                      2508.08221
    reinforce_pp A = (R - M) / D, M and D over the batch's tokens                       2501.03262
    reinforce_pp_baseline  the same of R - mean

`advantage_std` other than none divides by the group's too. The papers' sums of log pi over a
response are a token mean here (`aggregation`), a constant factor apart.

Peers. A group of one: rloo, opo and reinforce_pp_baseline have A = R in verl, 0 here. pass_at_k:
verl divides by the group's std unless told not to (`advantage_std: sample`). dr_grpo: TRL divides
by all rows, empty ones too; prime-rl's GRPO has its advantages with a token mean. lite_ppo: ROLL's
example adds whitening and a dual clip. reinforce_pp: the paper's KL in the reward is off here, as
by verl's default; ms-swift's is our baseline form, by the sequences' std. With rewards of the same
sign maxrl's are weights: they must lie in [0, 1].
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal, group_advantages
from nemo_algos.algorithms.params import ClipParams, OfAdvantages, Std, Undivided
from nemo_algos.algorithms.record import Need

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


class BaselineParams(ClipParams):
    """advantage_std: a further division; aggregation: the mean of J."""

    advantage_std: OfAdvantages[Std] = "none"
    aggregation: Literal["sequence", "token"] = "token"


class WhitenedParams(BaselineParams):
    """The batch's deviation is the only one."""

    advantage_std: Undivided = "none"


class PassAtKParams(BaselineParams):
    """No advantage is negative, so of the clips only clip_high acts."""

    @model_validator(mode="after")
    def _none_is_negative(self) -> PassAtKParams:
        if idle := [key for key in self.changed if key in ("clip_low", "dual_clip")]:
            raise ValueError(f"{idle[0]} has no meaning for pass_at_k: no advantage is negative")
        return self


class DrGRPOParams(ClipParams):
    """max_tokens: the constant divisor; where none is written, a trainer's limit of a response."""

    advantage_std: OfAdvantages[Std] = "none"
    max_tokens: OfAdvantages[int] = Field(default=3000, ge=1)


def dr_grpo(rollouts: Rollouts, params: DrGRPOParams) -> Signal:
    """A_i = (R_i - mean) |o_i| / max_tokens, [B]."""
    return Signal(group_advantages(rollouts, params).value * rollouts.lengths / params.max_tokens)


def rloo(rollouts: Rollouts, params: BaselineParams) -> Signal:
    """A_i = (R_i - mean) n / (n - 1), [B]: R_i less the mean of the others."""
    count = rollouts.groups.count.double()
    return Signal(
        group_advantages(rollouts, params).value
        * (count / (count - 1).clamp(min=1))[rollouts.groups.index]
    )


def opo(rollouts: Rollouts, params: BaselineParams) -> Signal:
    """A_i = R_i - sum_j |o_j| R_j / sum_j |o_j|, [B]."""
    groups, length = rollouts.groups, rollouts.lengths.double()
    baseline = groups.sum(rollouts.rewards * length) / groups.sum(length).clamp(min=1)
    return Signal(_scaled(rollouts.rewards - baseline[groups.index], rollouts, params))


def maxrl(rollouts: Rollouts, params: BaselineParams) -> Signal:
    """A_i = (R_i - mean) / mean, [B]; 0 where the group has no success."""
    mean = rollouts.groups.mean(rollouts.rewards)[rollouts.groups.index]
    return Signal((group_advantages(rollouts, params).value / mean).where(mean > 0, 0.0))


def pass_at_k(rollouts: Rollouts, params: BaselineParams) -> Signal:
    """A_i = R_i - R_second of the single best response, [B]; 0 for the others, and in a tie."""
    groups, rewards = rollouts.groups, rollouts.rewards
    best = rewards == groups.max(rewards)[groups.index]
    second = groups.max(rewards.masked_fill(best, -float("inf")))[groups.index]
    lead = (rewards - second).where(best & (groups.sum(best) == 1)[groups.index], 0.0)
    return Signal(_scaled(lead, rollouts, params))


def lite_ppo(rollouts: Rollouts, params: BaselineParams) -> Signal:
    """A_i = (R_i - mean) / (std of the batch's rewards + 1e-6), [B]."""
    rewards = rollouts.rewards[rollouts.kept]
    deviation = rewards.std(correction=1) if len(rewards) > 1 else rewards.new_zeros(())
    return Signal(group_advantages(rollouts, params).value / (deviation + core.groups.EPS))


def reinforce_pp(rollouts: Rollouts, params: BaselineParams) -> Signal:
    """A_i = (R_i - M) / sqrt(V + 1e-8), [B]; M, V: mean and variance of R over all tokens."""
    return Signal(_whitened(rollouts.rewards, rollouts))


def reinforce_pp_baseline(rollouts: Rollouts, params: BaselineParams) -> Signal:
    """reinforce_pp of R_i - mean, [B]."""
    return Signal(_whitened(group_advantages(rollouts, params).value, rollouts))


def _scaled(values: Tensor, rollouts: Rollouts, params: BaselineParams) -> Tensor:
    """Divided by the group's std where that is asked for, and exactly 0 in flat groups."""
    groups, rewards = rollouts.groups, rollouts.rewards
    if params.advantage_std != "none":
        dof = 1 if params.advantage_std == "sample" else 0
        values = values / (groups.std(rewards, dof) + core.groups.EPS)[groups.index]
    return values.where(~groups.flat(rewards)[groups.index], 0.0)


def _whitened(values: Tensor, rollouts: Rollouts) -> Tensor:
    """Of mean 0 and variance 1 over the tokens of all responses; 0 where all are equal."""
    weight = rollouts.lengths * rollouts.kept
    if core.groups.equal(values[weight > 0]):
        return values.new_zeros(values.shape)
    tokens = weight.sum()
    centred = values - (values * weight).sum() / tokens
    return centred * ((centred.square() * weight).sum() / (tokens - 1) + 1e-8).rsqrt()


GROWING = frozenset[Need]({"sequence_mean"})  # A grows with the length
_baseline = partial(Method, params=BaselineParams)
_whitening = partial(_baseline, flat_group_is_inert=False)
DR_GRPO = Method(
    "dr_grpo",
    "Dr. GRPO, arXiv 2503.20783",
    DrGRPOParams,
    dr_grpo,
    needs=frozenset({"sequence_mean"}),
)
RLOO = _baseline("rloo", "RLOO, arXiv 2402.14740", advantages=rloo)
OPO = _baseline("opo", "OPO, arXiv 2505.23585", advantages=opo)
MAXRL = _baseline(
    "maxrl", "MaxRL, arXiv 2602.02710", advantages=maxrl, needs=frozenset({"unit_rewards"})
)
PASS_AT_K = _baseline(
    "pass_at_k",
    "Pass@k as objective, arXiv 2503.19595",
    params=PassAtKParams,
    advantages=pass_at_k,
)
LITE_PPO = _baseline("lite_ppo", "Lite PPO, arXiv 2508.08221", advantages=lite_ppo)
REINFORCE_PP = _whitening(
    "reinforce_pp",
    "REINFORCE++, arXiv 2501.03262",
    params=WhitenedParams,
    advantages=reinforce_pp,
)
REINFORCE_PP_BASELINE = _whitening(
    "reinforce_pp_baseline",
    "REINFORCE++-baseline, arXiv 2501.03262",
    advantages=reinforce_pp_baseline,
)
