"""Methods that replace GRPO's advantages, [B], and nothing else.

A method's function has its formula, why it works, and where other implementations differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, FiniteFloat, model_validator

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import DriverOutput, Method, group_advantages
from nemo_algos.algorithms.record import (
    ClipParams,
    OfAdvantages,
    OfBounds,
    Params,
    Std,
    Undivided,
)

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


class DrGRPOParams(ClipParams):
    """GRPO's clip range, a constant divisor, no std."""

    advantage_std: OfAdvantages[Std] = "none"
    max_tokens: OfAdvantages[int] = Field(default=3000, ge=1)
    """Constant divisor. Default: the trainer's limit of a response."""


def dr_grpo_advantages(rollouts: Rollouts, params: DrGRPOParams) -> DriverOutput:
    """Dr. GRPO: GRPO without the two divisions that bias it.

        A_i = (R_i - mean) |o_i| / max_tokens                             sequence mean of the ratio

    Why: GRPO divides by each response's length, so a long wrong response is punished less per
    token, and by the group's std, so prompts that are nearly solved or nearly hopeless weigh more.
    A constant divisor gives every token and every prompt the same weight.

    TRL divides by all rows, empty ones too; prime-rl's GRPO has these advantages with a token mean.
    """
    return DriverOutput(
        group_advantages(rollouts, params).value * rollouts.lengths / params.max_tokens
    )


DR_GRPO = Method(
    name="dr_grpo",
    paper="Dr. GRPO, arXiv 2503.20783",
    params=DrGRPOParams,
    advantages=dr_grpo_advantages,
    needs=frozenset({"sequence_mean"}),
)


class BaselineParams(ClipParams):
    """Parameters of the methods that replace GRPO's advantage alone."""

    advantage_std: OfAdvantages[Std] = "none"
    """Also divide by the standard deviation of the group's rewards. The papers do not."""
    aggregation: Literal["sequence", "token"] = "token"
    """The mean of J."""


def rloo_advantages(rollouts: Rollouts, params: BaselineParams) -> DriverOutput:
    """RLOO, REINFORCE leave-one-out: the baseline is the mean of the others.

        A_i = R_i - mean_{j != i} R_j = (R_i - mean) n / (n - 1)            n responses in the group

    Why: a baseline that contains the response's own reward shrinks the gradient by (n - 1) / n. The
    mean of the other responses does not depend on it: the gradient is unbiased, without a critic.

    The paper's sum of log pi over a response is a token mean here, a constant factor apart. In a
    group of one A is R in verl, 0 here.
    """
    count = rollouts.groups.count.double()
    factor = (count / (count - 1).clamp(min=1))[rollouts.groups.index]
    return DriverOutput(group_advantages(rollouts, params).value * factor)


RLOO = Method(
    name="rloo", paper="RLOO, arXiv 2402.14740", params=BaselineParams, advantages=rloo_advantages
)


def opo_advantages(rollouts: Rollouts, params: BaselineParams) -> DriverOutput:
    """OPO, optimal reward baseline: the mean reward weighted by length.

        A_i = R_i - b,   b = sum_j |o_j| R_j / sum_j |o_j|                              of the group

    Why: the baseline of least variance weighs each reward by its response's squared gradient norm.
    That norm grows about as the length, so the length-weighted mean comes close to it at no cost.

    The paper's sum of log pi over a response is a token mean here, a constant factor apart. In a
    group of one A is R in verl, 0 here.
    """
    groups = rollouts.groups
    rewards = rollouts.rewards
    lengths = rollouts.lengths.double()
    baseline = groups.sum(rewards * lengths) / groups.sum(lengths).clamp(min=1)
    gap = rewards - baseline[groups.index]
    return DriverOutput(core.groups.scaled(gap, rewards, groups, params.advantage_std))


OPO = Method(
    name="opo", paper="OPO, arXiv 2505.23585", params=BaselineParams, advantages=opo_advantages
)


def maxrl_advantages(rollouts: Rollouts, params: BaselineParams) -> DriverOutput:
    """MaxRL, maximum likelihood of success: advantages over the success rate.

        A_i = (R_i - mean) / mean                                      0 where no response succeeds

    Why: the mean reward is the success rate p, and a prompt of small p adds little to its gradient.
    The likelihood of success, log p, has 1 / p times that gradient, so hard prompts weigh as they
    should.

    Rewards must lie in [0, 1]: with other rewards their mean is no success rate. The paper's sum of
    log pi over a response is a token mean here, a constant factor apart.
    """
    rate = rollouts.groups.mean(rollouts.column(None))[rollouts.groups.index]
    return DriverOutput((group_advantages(rollouts, params).value / rate).where(rate > 0, 0.0))


MAXRL = Method(
    name="maxrl",
    paper="MaxRL, arXiv 2602.02710",
    params=BaselineParams,
    advantages=maxrl_advantages,
    needs=frozenset({"unit_rewards"}),
)


class PassAtKParams(BaselineParams):
    """No advantage is negative, so of the clips only clip_high acts."""

    @model_validator(mode="after")
    def _none_is_negative(self) -> PassAtKParams:
        refuse_idle(self, "pass_at_k")
        return self


def refuse_idle(params: Params, method: str) -> None:
    """Raise ValueError for a parameter that acts on negative advantages alone."""
    for key in params.non_default:
        if key in ("clip_low", "dual_clip"):
            raise ValueError(
                f"`{key}` has no effect in {method}: its advantages are never negative. Remove it."
            )


def pass_at_k_advantages(rollouts: Rollouts, params: PassAtKParams) -> DriverOutput:
    """Pass@k as objective, with k the group: only the best response learns.

        A_i = R_i - R_second                    the single best response; 0 for the others, and ties

    Why: the mean reward pays for making one solution likelier, which costs diversity. The best
    reward of a group rises by what its best response adds to the second best, so that lead is the
    advantage.

    verl divides by the group's std unless told not to (`advantage_std: sample`).
    """
    groups = rollouts.groups
    rewards = rollouts.rewards
    best = rewards >= (groups.max(rewards) - groups.tolerance(rewards))[groups.index]
    second = groups.max(rewards.masked_fill(best, -float("inf")))[groups.index]
    lead = (rewards - second).where(best & (groups.sum(best) == 1)[groups.index], 0.0)
    return DriverOutput(core.groups.scaled(lead, rewards, groups, params.advantage_std))


PASS_AT_K = Method(
    name="pass_at_k",
    paper="Pass@k as objective, arXiv 2503.19595",
    params=PassAtKParams,
    advantages=pass_at_k_advantages,
)


def lite_ppo_advantages(rollouts: Rollouts, params: BaselineParams) -> DriverOutput:
    """Lite PPO: the group's mean, the batch's std, and a token mean.

        A_i = (R_i - mean of the group) / (std of the batch's rewards + 1e-6)

    Why: where nearly all of a group's rewards agree, its std is small and its few deviants get huge
    advantages. The batch's std comes from many more rewards and is the same for every prompt.

    ROLL's example adds whitening and a dual clip.
    """
    rewards = rollouts.rewards[rollouts.kept]
    deviation = rewards.std(correction=1) if len(rewards) > 1 else rewards.new_zeros(())
    return DriverOutput(group_advantages(rollouts, params).value / (deviation + core.groups.EPS))


LITE_PPO = Method(
    name="lite_ppo",
    paper="Lite PPO, arXiv 2508.08221",
    params=BaselineParams,
    advantages=lite_ppo_advantages,
    whole_batch=True,
)


class REINFORCEPPParams(BaselineParams):
    """The batch's deviation is the only one."""

    advantage_std: Undivided = "none"


def reinforce_pp_advantages(rollouts: Rollouts, params: REINFORCEPPParams) -> DriverOutput:
    """REINFORCE++: rewards whitened over all tokens of the batch, no groups.

        A_i = (R_i - M) / sqrt(V + 1e-8)        M, V: mean and variance of R over the batch's tokens

    Why: mean and std of a few responses depend on each response's own reward, which biases GRPO's
    advantage. Those of a whole batch hardly do, and one response per prompt is enough.

    The paper's KL in the reward is off here, as by verl's default.
    """
    return DriverOutput(whitened(rollouts.rewards, rollouts))


def whitened(values: Tensor, rollouts: Rollouts) -> Tensor:
    """[B] of mean 0 and variance 1 over the tokens of all responses; 0 where all are equal."""
    weight = rollouts.lengths * rollouts.kept
    if core.groups.all_equal(values[weight > 0]):
        return values.new_zeros(values.shape)
    tokens = weight.sum()
    centred = values - (values * weight).sum() / tokens
    return centred * ((centred.square() * weight).sum() / (tokens - 1) + 1e-8).rsqrt()


REINFORCE_PP = Method(
    name="reinforce_pp",
    paper="REINFORCE++, arXiv 2501.03262",
    params=REINFORCEPPParams,
    advantages=reinforce_pp_advantages,
    flat_group_is_inert=False,
    whole_batch=True,
)


def reinforce_pp_baseline_advantages(rollouts: Rollouts, params: BaselineParams) -> DriverOutput:
    """REINFORCE++-baseline: R less its group's mean, whitened over the batch.

        A_i = (x_i - M) / sqrt(V + 1e-8), x_i = R_i - mean of the group
                                              M, V: mean and variance of x over the batch's tokens

    Why: the group's mean takes out how hard the prompt is, and the batch's variance scales all
    prompts alike, so no group's small std blows up an advantage.

    ms-swift whitens by the sequences' std. In a group of one x is R in verl, 0 here.
    """
    return DriverOutput(whitened(group_advantages(rollouts, params).value, rollouts))


REINFORCE_PP_BASELINE = Method(
    name="reinforce_pp_baseline",
    paper="REINFORCE++-baseline, arXiv 2501.03262",
    params=BaselineParams,
    advantages=reinforce_pp_baseline_advantages,
    flat_group_is_inert=False,
    whole_batch=True,
)


class GDPOParams(ClipParams):
    """What is added to each deviation, and the weights."""

    epsilon: OfAdvantages[float] = Field(default=1e-6, gt=0)
    """Added to each standard deviation."""
    reward_weights: OfAdvantages[dict[str, FiniteFloat] | list[FiniteFloat]] = Field(
        default_factory=dict
    )
    """Weights of the reward parts by name, or NeMo-RL's list, one for each in alphabetical order.
    They override those of data.rewards."""


def gdpo_advantages(rollouts: Rollouts, params: GDPOParams) -> DriverOutput:
    """GDPO: each part of the reward normalised in its group, their weighted sum in the batch.

        A^k_i = (r^k_i - mean(r^k)) / (std(r^k) + epsilon)            of the group, for each part k
        S_i   = sum_k w_k A^k_i
        A_i   = (S_i - mean(S)) / (std(S) + epsilon)                of the batch (masked rows aside)

    Why: different combinations of parts often have the same sum, and the part of the largest spread
    rules it. Normalised one by one, each part keeps its own distinctions and its own weight.

    Parts and weights are the reward's own (`data.rewards`; of NeMo-RL its `reward/NAME`, weight 1
    unless `reward_weights` says more). TRL's normalize_then_sum is epsilon 1e-4; verl takes the
    batch's moments over tokens; NeMo-RL's gdpo has no epsilon there and leaves the own response out
    of means.

    Returns A_i, [B]. Raises ValueError for weights that are not those of the parts.
    """
    std = params.advantage_std
    epsilon = params.epsilon
    groups = rollouts.groups
    parts = rollouts.reward_parts or {}
    weights = _weights(rollouts, params.reward_weights)
    total = rollouts.rewards.new_zeros(len(rollouts))
    metrics = dict[str, float]()
    for name, values in parts.items():
        part = core.groups.advantages(values, groups, std, epsilon)
        total = total + weights.get(name, 1.0) * part
        metrics[f"gdpo/flat_{name}"] = float(groups.flat(values).double().mean())
    standard = core.groups.standardized(total, rollouts.kept, std, epsilon)
    return DriverOutput(standard, metrics)


def _weights(rollouts: Rollouts, own: Mapping[str, float] | Sequence[float]) -> Mapping[str, float]:
    """The weights of the parts; `own` override those of the reward, 1 where there is none."""
    weights = {**(rollouts.reward_weights or {}), **_by_name(own, rollouts.reward_parts or {})}
    for name in weights:
        rollouts.column(name)  # raises for a part that there is not
    return weights


def _by_name(
    weights: Mapping[str, float] | Sequence[float], parts: Mapping[str, Tensor]
) -> Mapping[str, float]:
    """The weights by part; a list has them in alphabetical order of the parts."""
    if isinstance(weights, Mapping):
        return weights
    if len(weights) != len(parts):
        raise ValueError(
            f"`method.reward_weights` has {len(weights)} weights, but the reward has {len(parts)} "
            f"parts: {', '.join(sorted(parts))}. Give one for each, in this order."
        )
    return dict(zip(sorted(parts), weights, strict=True))


GDPO = Method(
    name="gdpo",
    paper="GDPO, arXiv 2601.05242",
    params=GDPOParams,
    advantages=gdpo_advantages,
    flat_group_is_inert=False,
    whole_batch=True,
    needs=frozenset({"reward_parts"}),
)


class DVAOParams(ClipParams):
    """GRPO's clip range, the population's deviation, and the weights."""

    advantage_std: OfAdvantages[Std] = "population"
    reward_weights: OfAdvantages[dict[str, FiniteFloat] | list[FiniteFloat]] = Field(
        default_factory=dict
    )
    """Weights of the reward parts, as gdpo's."""


def dvao_advantages(rollouts: Rollouts, params: DVAOParams) -> DriverOutput:
    """DVAO: parts of the reward weigh by how much they vary within the group.

        A_i = sum_k w_k (r^k_i - mean(r^k)) / sum_k w_k std(r^k)          of the group, for parts k

    Why: normalised one by one, a part in which all responses are nearly equal speaks as loudly as
    one that tells them apart, and that is noise. Here a part has the voice of its deviation, and
    one that is flat in the group has none.

    Give the parts one scale, [0, 1]. Two readings of the paper and one implementation agree on
    the advantage; the clip is GRPO's, the token mean DAPO's. With
    `advantage_std: none` nothing is divided.

    Returns A_i, [B]. Raises ValueError for weights that are not those of the parts.
    """
    groups = rollouts.groups
    weights = _weights(rollouts, params.reward_weights)
    total = rollouts.rewards.new_zeros(len(rollouts))
    scale = groups.sum(total)
    for name, values in (rollouts.reward_parts or {}).items():
        weight = weights.get(name, 1.0)
        dof = 1 if params.advantage_std == "sample" else 0
        total = total + weight * core.groups.advantages(values, groups, "none")
        scale = scale + weight * groups.std(values, dof).where(~groups.flat(values), 0.0)
    if params.advantage_std == "none":
        return DriverOutput(total)
    scale = scale[groups.index]
    return DriverOutput((total / scale).where(scale != 0, 0.0))


DVAO = Method(
    name="dvao",
    paper="DVAO, arXiv 2605.25604",
    params=DVAOParams,
    advantages=dvao_advantages,
    flat_group_is_inert=False,
    mean="token",
    needs=frozenset({"reward_parts"}),
)


class WAPOParams(Params):
    """A cap of the ratio, a constant divisor, no std."""

    cap: OfBounds[float] = Field(default=10.0, gt=1)
    """The largest ratio (1 + clip_eps)."""
    advantage_std: OfAdvantages[Std] = "none"
    max_tokens: OfAdvantages[int] = Field(default=2048, ge=1)
    """Constant divisor. Default: the trainer's limit of a response."""

    @model_validator(mode="after")
    def _none_is_negative(self) -> WAPOParams:
        refuse_idle(self, "wapo")
        return self


def wapo_advantages(rollouts: Rollouts, params: WAPOParams) -> DriverOutput:
    """WAPO: only what is better than its group trains, and of groups only those that have such.

        J   = 1 / G_+ sum_g 1 / n_g sum_{i in g} |o_i| / max_tokens mean_t min(r, cap) A_i
        A_i = max(R_i - mean, 0); n_g: the group's responses; G_+: groups with a positive A

    Why: pushing a wrong response down lifts everything else, most of it no better, and the entropy
    is lost to it. Pushing winners up alone cannot, and the wide cap leaves them free.

    After the authors' code, whose ratio is to the sampler: set `old_policy: sampler`. Its filters
    by entropy are not here. Steps are several times smaller than GRPO's: choose the rate anew.

    Returns A_i |o_i| / max_tokens B / (n_g G_+), [B], of which the sequence mean is J.
    """
    positive = group_advantages(rollouts, params).value.clamp(min=0)
    groups = rollouts.groups
    trained = positive.where(rollouts.kept, 0.0)  # a group that is masked out whole has no winner
    winning = (groups.max(trained) > 0).sum().clamp(min=1)
    share = (rollouts.lengths > 0).double().sum() / (groups.count * winning)
    return DriverOutput(positive * rollouts.lengths / params.max_tokens * share[groups.index])


def cap_bounds(params: WAPOParams) -> tuple[float, float]:
    """None below."""
    return (math.inf, params.cap - 1)


WAPO = Method(
    name="wapo",
    paper="WAPO, arXiv 2606.16154",
    params=WAPOParams,
    advantages=wapo_advantages,
    constant_bounds=cap_bounds,
    needs=frozenset({"sequence_mean"}),
    whole_batch=True,
)
