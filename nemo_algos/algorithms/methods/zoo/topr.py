"""TOPR, tapered off-policy REINFORCE: failures fade, successes do not, arXiv 2503.14286.

    J = mean sg[w] A log pi    w = 1 for R > 0, min(W, 1) for others, W = exp(sum_t l_t)

Why: off-policy REINFORCE keeps pushing failures down long after they became unlikely, which ruins
the policy. Cut at 1 their weight fades as they do; successes need none and are learnt at full rate.

The sum of log pi over a response is a token mean, as in ROLL's code. The paper's T+ and T- are told
by the reward, the weight is the group advantage, as in ROLL, whose ratio is each token's; the
paper's, and ours, is the response's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal, Signals, no_bounds
from nemo_algos.algorithms.record import Params

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


def won(rollouts: Rollouts, params: Params) -> Signal:
    """1 where the outcome is above 0, else 0, [B]."""
    return Signal((rollouts.column(None) > 0).double())


def log_product(log_ratio: Tensor, mask: Tensor, signals: Signals, params: Params) -> Tensor:
    """log W_i = sum_t l_t, [B,1]."""
    return core.surrogate.sequence_sum(log_ratio, params.max_log_ratio)


def reweight(log_ratio: Tensor, mask: Tensor, signals: Signals, params: Params) -> Tensor:
    """A'_i = w A_i, w = 1 after a success, else the ratio cut at 1."""
    weight = log_ratio.clamp(max=0).exp().masked_fill(signals.extras["won"] > 0, 1.0)
    return weight * signals.advantages


TOPR = Method(
    name="topr",
    paper="TOPR, arXiv 2503.14286",
    params=Params,
    constant_bounds=no_bounds,
    extras={"won": won},
    log_ratio=log_product,
    reweight=reweight,
    form="logprob",
    clips=None,
    mean="token",
    needs=frozenset({"sequence_advantages"}),
    success=frozenset({"loss"}),
)
