"""One ratio per response: GSPO's relatives, and two products of all token ratios.

    gspo_token  r_t = sg[s_i] pi_t / sg[pi_t], s_i = exp(mean_t l_t): GSPO for advantages per token
                                                                                       2507.18071
    luspo       GSPO with A_i |o_i|                                                    2602.05261
    gepo        r_i = p_i / E, p_i = exp(mean_t log pi_theta), E = sum_j q_j^2 / sum_j q_j over
                the group, q of pi_old                                                 2508.17850
    vespo       J = mean sg[phi(W)] A log pi, phi = W^k exp(lambda (1 - W)), W = exp(sum_t l_t), k
                and lambda by the sign of A                                            2602.10693
    topr        J = mean sg[w] A log pi, w = 1 for R > 0, min(W, 1) for others         2503.14286

The sums of log pi over a response are token means in vespo and topr, as in TRL's and ROLL's code.
gepo's p and q are the authors' code's (length-normalised); its E there is of a device's batch. TRL
puts its correction for the sampler into vespo's W; here `loss_fn`'s multiplies the loss. topr's T+
and T- are told by the reward, the weight is the group advantage, as in ROLL, whose ratio is each
token's; the paper's is the trajectory's. gspo_token's and gepo's bounds are gspo's
here (.2), not their papers'.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal, Signals, group_advantages, no_bounds
from nemo_algos.algorithms.methods.gspo import log_ratio as geometric_mean
from nemo_algos.algorithms.methods.zoo.baselines import GROWING
from nemo_algos.algorithms.params import ClipParams, OfBounds, Params

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


class LUSPOParams(ClipParams):
    """The paper's bounds."""

    clip_low: OfBounds[float] = Field(default=2e-3, ge=0, le=1)
    clip_high: OfBounds[float] = Field(default=2.5e-3, ge=0)


class VESPOParams(Params):
    """k and lambda of phi by the sign of the advantage."""

    k_positive: float = Field(default=2.0, ge=0)
    lambda_positive: float = Field(default=3.0, gt=0)
    k_negative: float = Field(default=3.0, ge=0)
    lambda_negative: float = Field(default=2.0, gt=0)


def gspo_token(log_ratio: Tensor, mask: Tensor, signals: Signals, params: ClipParams) -> Tensor:
    """log s_i as the value, l_t's gradient, [B,S]."""
    own = log_ratio.detach()
    return (core.surrogate.sequence_mean(own, mask) + (log_ratio - own)).where(mask, 0.0)


def luspo(rollouts: Rollouts, params: LUSPOParams) -> Signal:
    """A_i |o_i|, [B]."""
    return Signal(group_advantages(rollouts, params).value * rollouts.lengths)


def offset(rollouts: Rollouts, params: ClipParams) -> Signal:
    """log q_i - log E, E = sum q^2 / sum q over the group, [B]."""
    old = rollouts.old_logprobs.double().where(rollouts.mask, 0.0)
    q = core.surrogate.sequence_mean(old, rollouts.mask)[:, 0].exp()
    groups = rollouts.groups
    return Signal(q.log() - (groups.sum(q.square()) / groups.sum(q)).log()[groups.index])


def gepo(log_ratio: Tensor, mask: Tensor, signals: Signals, params: ClipParams) -> Tensor:
    """log p_i - log E = mean_t l_t + log q_i - log E, [B,1]."""
    return core.surrogate.sequence_mean(log_ratio, mask) + signals.extras["offset"]


def log_product(log_ratio: Tensor, mask: Tensor, signals: Signals, params: Params) -> Tensor:
    """log W_i = sum_t l_t, [B,1]."""
    return core.surrogate.sequence_sum(log_ratio, params.max_log_ratio)


def vespo(log_ratio: Tensor, mask: Tensor, signals: Signals, params: VESPOParams) -> Tensor:
    """A'_i = phi(W_i) A_i, [B,1]."""
    A = signals.advantages
    k = A.new_full(A.shape, params.k_negative).masked_fill(A >= 0, params.k_positive)
    decay = A.new_full(A.shape, params.lambda_negative).masked_fill(A >= 0, params.lambda_positive)
    return (k * log_ratio - decay * core.surrogate.expm1(log_ratio)).exp() * A


def won(rollouts: Rollouts, params: Params) -> Signal:
    """1 where the reward is above 0, else 0, [B]."""
    return Signal((rollouts.rewards > 0).double())


def topr(log_ratio: Tensor, mask: Tensor, signals: Signals, params: Params) -> Tensor:
    """A'_i = w A_i, w = 1 after a success, else the ratio cut at 1."""
    weight = log_ratio.clamp(max=0).exp().masked_fill(signals.extras["won"] > 0, 1.0)
    return weight * signals.advantages


_sequence = partial(Method, ratio="sequence")
_score = partial(Method, constant_bounds=no_bounds, log_ratio=log_product, form="logprob")
_score = partial(_score, clips=None, mean="token", needs=frozenset({"sequence_advantages"}))
GSPO_TOKEN = Method("gspo_token", "GSPO-token, arXiv 2507.18071", ClipParams, log_ratio=gspo_token)
LUSPO = _sequence(
    "luspo",
    "LUSPO, arXiv 2602.05261",
    LUSPOParams,
    luspo,
    log_ratio=geometric_mean,
    needs=GROWING,
    own=frozenset({"advantages"}),  # the ratio is gspo's
)
GEPO = _sequence(
    "gepo", "GEPO, arXiv 2508.17850", ClipParams, extras={"offset": offset}, log_ratio=gepo
)
VESPO = _score("vespo", "VESPO, arXiv 2602.10693", VESPOParams, reweight=vespo)
TOPR = _score("topr", "TOPR, arXiv 2503.14286", Params, extras={"won": won}, reweight=topr)
