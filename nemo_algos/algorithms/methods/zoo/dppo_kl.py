"""DPPO, binary KL: a trust region of each token's divergence, arXiv 2602.04879.

    J = mean sg[w] A log pi    w = min(r, cap) while kl(p, q) <= high, or q <= p          A > 0
                                             while kl(p, q) <= low, or q >= p           A < 0
    kl of two outcomes, this token or another: (1 - p) log((1 - p) / (1 - q)) + p log(p / q)

Why: as dppo_tv, a limit on how far the distribution moves and not on the ratio, but in nats. Only
the sampled token's probability is needed, no logits, and a move back to pi_old is never cut.

verl has its actor's clip_ratio_c of 3 as the cap, and 0.2 as the threshold of both divergences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms.kernel import Method, Signal, Signals, no_bounds
from nemo_algos.algorithms.record import Params

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts

TINY = 1e-8  # of the probability of all other tokens, as verl's


class KLParams(Params):
    """How far a token's two-outcome distribution may move, and a limit of the ratio."""

    low: float = Field(default=0.05, gt=0)
    """The divergence, nats, that a token may reach where A < 0."""
    high: float = Field(default=0.05, gt=0)
    """The same where A > 0."""
    cap: float = Field(default=20.0, gt=1)
    """The largest weight."""


def old_logprobs(rollouts: Rollouts, params: KLParams) -> Signal:
    """log p, [B,S], 0 off the mask."""
    return Signal(rollouts.old_logprobs.where(rollouts.mask, 0.0))


def reweight(log_ratio: Tensor, mask: Tensor, signals: Signals, params: KLParams) -> Tensor:
    """A'_it = min(r_t, cap) A_i while kl(p, q) is in bounds or q goes back to p, else 0, [B,S]."""
    A, old = signals.advantages, signals.extras["old_logprobs"]
    p, q = old.exp(), (old + log_ratio).clamp(max=0).exp()
    kl = (1 - p) * ((1 - p + TINY) / (1 - q + TINY)).log() - p * log_ratio
    up = (kl <= params.high) | (log_ratio <= 0)
    down = (kl <= params.low) | (log_ratio >= 0)
    return log_ratio.exp().clamp(max=params.cap).where(up.where(A > 0, down), 0.0) * A


DPPO_KL = Method(
    name="dppo_kl",
    paper="DPPO (binary KL), arXiv 2602.04879",
    params=KLParams,
    constant_bounds=no_bounds,
    extras={"old_logprobs": old_logprobs},
    reweight=reweight,
    per_token=frozenset({"old_logprobs"}),
    form="logprob",
    clips=None,
    mean="token",
)
