"""Methods by turn: each turn of a response is an action with a return of its own.

    G_i,k = R_i - (what response i earned before turn k)                  the return from turn k on
    V_j,k = G_j,min(k, last turn of j)                                 what j is to turn k's group

Turns and their rewards are of `Rollouts`. Every group statistic of turn k is over V_.,k: one number
for each response of the group, also for those that have ended before turn k, whose last turn's
return stands in. Tokens that `sample_mask` or a correction takes out still tell which turn was the
last. So no baseline depends on how many turns a response itself took. Advantages that are
normalised turn by turn and summed subtract one more mean for each further turn, a hidden bonus of
-E[reward of a turn] on going on (verl#7244). With one turn each method is the one that it is named
after, RLOO, ETR or QUATRO; with the whole reward at the end its advantages are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import DriverOutput, Method, Signals, group_advantages, no_bounds
from nemo_algos.algorithms.methods import etr, quatro
from nemo_algos.algorithms.methods.zoo.advantages import BaselineParams, rloo_advantages

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts
    from nemo_algos.algorithms.shapes import Mask, PerToken


def _each_turn(
    function: Callable[[Rollouts, Any], DriverOutput], rollouts: Rollouts, params: Any
) -> tuple[list[DriverOutput], Tensor]:
    """The function's outputs for each turn's V, and the turn of each token."""
    earned = rollouts.turn_rewards
    last = rollouts.last_turn
    assert rollouts.turn is not None and earned is not None and last is not None
    turn = core.turns.index(rollouts.turn, rollouts.mask)
    values = core.turns.returns(rollouts.rewards, earned, turn, last)
    # a difference of rewards is as exact as they are: a success is above the rounding of them all
    outcomes = values.where(core.groups.succeeded(values), values.clamp(max=0))
    outputs = list[DriverOutput]()
    for value, outcome in zip(values.unbind(1), outcomes.unbind(1), strict=True):
        outputs.append(function(replace(rollouts, rewards=value, outcomes=outcome), params))
    return outputs, turn


def _advantages_by_turn(
    function: Callable[[Rollouts, Any], DriverOutput], rollouts: Rollouts, params: Any
) -> DriverOutput:
    """[B,S]: each token has its turn's; metrics are those of the first turn, the whole reward."""
    outputs, turn = _each_turn(function, rollouts, params)
    reports = {}
    for name in outputs[0].reports:
        reports[name] = core.turns.spread([each.reports[name] for each in outputs], turn)
    assert rollouts.last_turn is not None
    turns = rollouts.last_turn[rollouts.lengths > 0] + 1
    metrics = {"turns/mean": float(turns.double().mean())} if len(turns) else {}
    values = core.turns.spread([each.value for each in outputs], turn)
    return DriverOutput(values, {**outputs[0].metrics, **metrics}, reports)


def turn_rloo_advantages(rollouts: Rollouts, params: BaselineParams) -> DriverOutput:
    """RLOO by turn: a turn's return less the mean of what the others are to it.

        A_i,k = G_i,k - mean_{j != i} V_j,k                      of the group, for turn k's tokens
        G_i,k = R_i - (what i earned before turn k),  V_j,k = G_j,min(k, last turn of j)

    Why: a reward that came before a turn was not that turn's doing. The baseline is of the other
    responses alone and has one term for each, however long they went on, so the gradient is
    unbiased also where the policy decides whether there is another turn.

    In a group of one A is 0, as in rloo.
    """
    return _advantages_by_turn(rloo_advantages, rollouts, params)


TURN_RLOO = Method(
    name="turn_rloo",
    paper="RLOO over returns by turn, verl#7244",
    params=BaselineParams,
    advantages=turn_rloo_advantages,
    per_token=frozenset({"advantages"}),
    needs=frozenset({"turn_rewards"}),
    flat_group_is_inert=False,
)


def turn_group_advantages(rollouts: Rollouts, params: etr.ETRParams) -> DriverOutput:
    """(V_i,k - mean) / (std + 1e-6) over the group's V_.,k, [B,S]."""
    return _advantages_by_turn(group_advantages, rollouts, params)


def turn_etr_bounds(rollouts: Rollouts, params: etr.ETRParams) -> DriverOutput:
    """ETR by turn: the trust region of a turn from its own group signals.

        radius_i,k = clip_base + micro tanh(A_i,k) + macro 4 p_k (1 - p_k)
        A_i,k = (V_i,k - mean) / (std + 1e-6), p_k the share of V_.,k above 0, of the group

    Why: a turn after which all responses do equally well is settled, whatever the turns before it
    were, and a turn that decides the outcome is not.

    Returns (radius, radius), [B,S].
    """
    outputs, turn = _each_turn(etr.bounds, rollouts, params)
    radius = core.turns.spread([each.value[0] for each in outputs], turn)
    return DriverOutput((radius, radius), outputs[0].metrics, {"clip_radius": radius})


TURN_ETR = Method(
    name="turn_etr",
    paper="Elastic Trust Regions over returns by turn",
    params=etr.ETRParams,
    advantages=turn_group_advantages,
    bounds=turn_etr_bounds,
    per_token=frozenset({"advantages", "bounds"}),
    needs=frozenset({"turn_rewards"}),
    success=frozenset({"bounds"}),
    flat_group_is_inert=False,
    usual_group=4,
)


def turn_quatro_advantages(rollouts: Rollouts, params: quatro.QUATROParams) -> DriverOutput:
    """QUATRO by turn: a KL radius around each turn of a prompt.

        A_i,k = V_i,k / lambda_k - log mean exp(V_.,k / lambda_k)   lambda_k: the dual of turn k
        J_i   = sum_k s_i,k (A_i,k - sg[log s_i,k]),  s_i,k = exp(sum of l_t over turn k's tokens)

    Why: with rewards between turns, one ratio for the whole response would re-weight early turns by
    what only a later one has earned. Each turn gets a distribution and a radius of its own.

    `ratio: geometric_mean` takes the mean of l_t over the turn. Every turn weighs alike, however
    many tokens it has.
    """
    return _advantages_by_turn(quatro.advantages, rollouts, params)


def turn_index(rollouts: Rollouts, params: quatro.QUATROParams) -> DriverOutput:
    """Which turn a token belongs to, [B,S]."""
    assert rollouts.turn is not None
    return DriverOutput(core.turns.index(rollouts.turn, rollouts.mask).double())


def turn_quatro_log_ratio(
    log_ratio: PerToken, mask: Mask, signals: Signals, params: quatro.QUATROParams
) -> Tensor:
    """log s_i,k, [B,S]."""
    turn = signals.extras["turn"].long()
    total = core.turns.sums(log_ratio, turn)
    if params.ratio == "sequence":
        return core.surrogate.clamp(total, -params.max_log_ratio, params.max_log_ratio)
    return core.turns.means(log_ratio, turn, mask)


def turn_quatro_reweight(
    log_ratio: PerToken, mask: Mask, signals: Signals, params: quatro.QUATROParams
) -> Tensor:
    """(A - sg[log s]) times the response's tokens over the turn's: its mean becomes J_i."""
    tokens = mask.to(log_ratio.dtype)
    of_turn = core.turns.sums(tokens, signals.extras["turn"].long())
    weight = tokens.sum(1, keepdim=True) / of_turn.clamp(min=1)
    return quatro.reweight(log_ratio, mask, signals, params) * weight


TURN_QUATRO = Method(
    name="turn_quatro",
    paper="QUATRO over returns by turn",
    params=quatro.QUATROParams,
    advantages=turn_quatro_advantages,
    constant_bounds=no_bounds,
    extras={"turn": turn_index},
    log_ratio=turn_quatro_log_ratio,
    reweight=turn_quatro_reweight,
    per_token=frozenset({"advantages", "turn"}),
    needs=frozenset({"turn_rewards"}),
    clips=None,
    ratio="turn",
    flat_group_is_inert=False,
    usual_group=4,
)
