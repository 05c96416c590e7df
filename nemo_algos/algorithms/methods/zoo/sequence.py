"""Methods with one ratio per response, as GSPO's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import DriverOutput, Method, Signals, group_advantages
from nemo_algos.algorithms.methods import gspo
from nemo_algos.algorithms.record import ClipParams, OfBounds

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts
    from nemo_algos.algorithms.shapes import Mask, PerToken


def gspo_token_log_ratio(
    log_ratio: PerToken, mask: Mask, signals: Signals, params: ClipParams
) -> Tensor:
    """GSPO-token: GSPO's ratio as a value, each token's own gradient.

        r_t = sg[s_i] pi_t / sg[pi_t], s_i = exp(mean_t l_t)

    Why: GSPO's ratio is one number per response, and so is what it can credit. This one has the
    same value and gradient for advantages per response, and takes advantages per token as well.

    The bounds are gspo's here (0.2), not the paper's.

    Returns log s_i as the value with the gradient of l_t, [B,S].
    """
    own = log_ratio.detach()
    return (core.surrogate.sequence_mean(own, mask) + (log_ratio - own)).where(mask, 0.0)


GSPO_TOKEN = Method(
    name="gspo_token",
    paper="GSPO-token, arXiv 2507.18071",
    params=ClipParams,
    log_ratio=gspo_token_log_ratio,
)


class LUSPOParams(ClipParams):
    """The paper's bounds, small as those of GSPO's own paper: a mean over tokens moves little."""

    clip_low: OfBounds[float] = Field(default=2e-3, ge=0, le=1)
    clip_high: OfBounds[float] = Field(default=2.5e-3, ge=0)


def luspo_advantages(rollouts: Rollouts, params: LUSPOParams) -> DriverOutput:
    """LUSPO, length-unbiased sequence policy optimization: GSPO times the length.

        J = mean_i min(s_i A_i |o_i|, clip(s_i) A_i |o_i|), s_i = exp(mean_t l_t)

    Why: GSPO weighs each response alike, so each token of a long one counts less, and responses
    shrink. The factor |o_i| gives every token the same weight.

    Returns A_i |o_i|, [B].
    """
    return DriverOutput(group_advantages(rollouts, params).value * rollouts.lengths)


LUSPO = Method(
    name="luspo",
    paper="LUSPO, arXiv 2602.05261",
    params=LUSPOParams,
    advantages=luspo_advantages,
    log_ratio=gspo.log_ratio,
    ratio="sequence",
    needs=frozenset({"sequence_mean"}),
    own=frozenset({"advantages"}),  # the ratio is gspo's
)


def gepo_offset(rollouts: Rollouts, params: ClipParams) -> DriverOutput:
    """log q_i - log E, E = sum q^2 / sum q over the group, [B]."""
    old = rollouts.old_logprobs.double().where(rollouts.mask, 0.0)
    log_q = core.surrogate.sequence_mean(old, rollouts.mask)[:, 0]
    # a row without tokens, masked or rejected or empty, has no q: it would enter E as 1
    q = log_q.exp().where(rollouts.lengths > 0, 0.0)
    groups = rollouts.groups
    expected = groups.sum(q.square()) / groups.sum(q).where(groups.sum(q) > 0, 1.0)
    return DriverOutput((log_q - expected.log()[groups.index]).where(rollouts.lengths > 0, 0.0))


def gepo_log_ratio(log_ratio: PerToken, mask: Mask, signals: Signals, params: ClipParams) -> Tensor:
    """GEPO, group expectation policy optimization: the group's mean as denominator.

        r_i = p_i / E    p_i = exp(mean_t log pi_theta), q_i the same of pi_old,
                         E = sum_j q_j^2 / sum_j q_j over the group's responses with tokens

    Why: on stale or foreign samplers a single q_i can be tiny and p_i / q_i huge. An expectation
    over the group is never that small, which trades a little bias for much less variance.

    p and q are the authors' code's (length-normalised); its E is of a device's batch. The bounds
    are gspo's here (0.2), not the paper's.

    Returns log p_i - log E = mean_t l_t + log q_i - log E, [B,1].
    """
    return core.surrogate.sequence_mean(log_ratio, mask) + signals.extras["offset"]


GEPO = Method(
    name="gepo",
    paper="GEPO, arXiv 2508.17850",
    params=ClipParams,
    extras={"offset": gepo_offset},
    log_ratio=gepo_log_ratio,
    ratio="sequence",
    own_denominator=True,
)
