"""GEPO, group expectation policy optimization: the group's mean as denominator, arXiv 2508.17850.

    r_i = p_i / E    p_i = exp(mean_t log pi_theta), q_i the same of pi_old,
                     E = sum_j q_j^2 / sum_j q_j over the group's responses with tokens

Why: on stale or foreign samplers a single q_i can be tiny and p_i / q_i huge. An expectation over
the group is never that small, which trades a little bias for much less variance.

p and q are the authors' code's (length-normalised); its E is of a device's batch. The bounds are
gspo's here (0.2), not the paper's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal, Signals
from nemo_algos.algorithms.record import ClipParams

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


def offset(rollouts: Rollouts, params: ClipParams) -> Signal:
    """log q_i - log E, E = sum q^2 / sum q over the group, [B]."""
    old = rollouts.old_logprobs.double().where(rollouts.mask, 0.0)
    log_q = core.surrogate.sequence_mean(old, rollouts.mask)[:, 0]
    # a row without tokens, masked or rejected or empty, has no q: it would enter E as 1
    q = log_q.exp().where(rollouts.lengths > 0, 0.0)
    groups = rollouts.groups
    expected = groups.sum(q.square()) / groups.sum(q).where(groups.sum(q) > 0, 1.0)
    return Signal((log_q - expected.log()[groups.index]).where(rollouts.lengths > 0, 0.0))


def log_ratio(log_ratio: Tensor, mask: Tensor, signals: Signals, params: ClipParams) -> Tensor:
    """log p_i - log E = mean_t l_t + log q_i - log E, [B,1]."""
    return core.surrogate.sequence_mean(log_ratio, mask) + signals.extras["offset"]


GEPO = Method(
    name="gepo",
    paper="GEPO, arXiv 2508.17850",
    params=ClipParams,
    extras={"offset": offset},
    log_ratio=log_ratio,
    ratio="sequence",
    own_denominator=True,
)
