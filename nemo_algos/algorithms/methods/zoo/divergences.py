"""Trust regions by a divergence to pi_old, as masks or penalties, and distillation by one.

p, q: a token's probability under pi_old and pi_theta, r = q / p, l = log r. All but opd are
J = mean sg[w] A log pi, whose gradient is the papers'; their values differ by the penalty's form.

    dppo_tv   w = min(r, cap) while q - p <= high (A > 0) or >= -low, else 0      2602.04879
    dppo_kl   the same while kl(p, q) of two outcomes <= high (or q <= p), or low (or q >= p)
    prime_rl  dppo_tv without cap, less kl_tau l^2: A' = w A - 2 kl_tau l
    dro       A' = A - beta l, the gradient of A log pi - beta/2 l^2                    2405.19107
    kimi      A' = A - beta L, L = sum_t l_t: the same of whole responses                2501.12599
    opd       J = mean r A_t, A_t = log pi_ref - log pi_old: the reference as teacher
              (thinkingmachines.ai/blog/on-policy-distillation)

q - p <= delta is r <= 1 + delta / p, so the TV masks are bounds per token, combine as bounds do and
count as clips; kl's do neither. verl's dppo has its actor's clip_ratio_c of 3 as the cap, and .2 as
the threshold of both divergences. dro: DRO's policy term without its value function; verl's (no
default beta) and ROLL's "kimi15" (.1) are this, per token; kimi's paper states no coefficient.
prime_rl is DPPO with a penalty after Kimi K2.5's (2602.02276). Its loss for opd takes log pi_ref -
log pi_theta, drops tokens with q - p < -.2 and adds 1e-3 l^2.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal, Signals, no_bounds
from nemo_algos.algorithms.methods.gpg import GPGParams
from nemo_algos.algorithms.methods.zoo.sequence_ratios import log_product
from nemo_algos.algorithms.params import OfAdvantages, OfBounds, Params, Std, Undivided

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts

TINY = 1e-8  # of the probability of all other tokens, as verl's


class TVParams(Params):
    """low, high: how far a token's probability may move; cap: of the ratio."""

    low: OfBounds[float] = Field(default=0.2, gt=0)
    high: OfBounds[float] = Field(default=0.2, gt=0)
    cap: float = Field(default=20.0, gt=1)


class KLParams(TVParams):
    """low, high: of the divergence, nats."""

    low: float = Field(default=0.05, gt=0)
    high: float = Field(default=0.05, gt=0)


class PrimeRLParams(TVParams):
    """cap: beyond any ratio; kl_tau: of l^2."""

    advantage_std: OfAdvantages[Std] = "none"
    cap: float = Field(default=1e9, gt=1)
    kl_tau: float = Field(default=1e-3, ge=0)


class QuadraticParams(GPGParams):
    """beta: of the squared log-ratio's half."""

    beta: float = Field(default=0.1, ge=0)


class OPDParams(Params):
    """teacher: a model's folder or hub name, which the embedded engine loads as the reference."""

    advantage_std: Undivided = "none"
    teacher: OfAdvantages[str | None] = None


def tv_bounds(rollouts: Rollouts, params: TVParams) -> Signal:
    """[1 - low / p, 1 + high / p], [B,S]."""
    dtype = core.surrogate.working_dtype(rollouts.old_logprobs)
    inverse = rollouts.old_logprobs.to(dtype).where(rollouts.mask, 0.0).neg().exp()
    return Signal((params.low * inverse, params.high * inverse))


def dppo_tv(log_ratio: Tensor, mask: Tensor, signals: Signals, params: TVParams) -> Tensor:
    """A'_it = min(r_t, cap) A_i within the bounds, else 0, [B,S]."""
    A, ratio = signals.advantages, log_ratio.exp()
    within = (ratio <= 1 + signals.high).where(A > 0, ratio >= 1 - signals.low)
    return ratio.clamp(max=params.cap).where(within, 0.0) * A


def prime_rl(log_ratio: Tensor, mask: Tensor, signals: Signals, params: PrimeRLParams) -> Tensor:
    """A'_it = r_t A_i within the bounds, else 0, less 2 kl_tau l_t, [B,S]."""
    return dppo_tv(log_ratio, mask, signals, params) - 2 * params.kl_tau * log_ratio


def old_logprobs(rollouts: Rollouts, params: KLParams) -> Signal:
    """log p, [B,S], 0 off the mask."""
    return Signal(rollouts.old_logprobs.where(rollouts.mask, 0.0))


def dppo_kl(log_ratio: Tensor, mask: Tensor, signals: Signals, params: KLParams) -> Tensor:
    """A'_it = min(r_t, cap) A_i while kl(p, q) is in bounds or q goes back to p, else 0, [B,S]."""
    A, old = signals.advantages, signals.extras["old_logprobs"]
    p, q = old.exp(), (old + log_ratio).clamp(max=0).exp()
    kl = (1 - p) * ((1 - p + TINY) / (1 - q + TINY)).log() - p * log_ratio
    up = (kl <= params.high) | (log_ratio <= 0)
    down = (kl <= params.low) | (log_ratio >= 0)
    return log_ratio.exp().clamp(max=params.cap).where(up.where(A > 0, down), 0.0) * A


def quadratic(log_ratio: Tensor, mask: Tensor, signals: Signals, params: QuadraticParams) -> Tensor:
    """A' = A - beta log r', of each token, [B,S], or of the response, [B,1]."""
    return signals.advantages - params.beta * log_ratio


def to_teacher(rollouts: Rollouts, params: Params) -> Signal:
    """A_it = log pi_ref - log pi_old, [B,S]."""
    assert rollouts.ref_logprobs is not None
    mask = rollouts.mask
    gap = core.surrogate.difference(rollouts.ref_logprobs, rollouts.old_logprobs, mask, 20.0)
    tokens = max(1, int(mask.sum()))
    return Signal(gap, {"opd/teacher_kl": -float(gap.double().sum()) / tokens})


_score = partial(Method, form="logprob", mean="token")
_masked = partial(_score, bounds=tv_bounds, per_token=frozenset({"bounds"}), clips="weight")
_free = partial(Method, constant_bounds=no_bounds, mean="token", flat_group_is_inert=False)
_quadratic = partial(_free, params=QuadraticParams, reweight=quadratic, form="logprob", clips=None)
DPPO_TV = _masked("dppo_tv", "DPPO (binary TV), arXiv 2602.04879", TVParams, reweight=dppo_tv)
DPPO_KL = _score(
    "dppo_kl",
    "DPPO (binary KL), arXiv 2602.04879",
    KLParams,
    constant_bounds=no_bounds,
    extras={"old_logprobs": old_logprobs},
    reweight=dppo_kl,
    per_token=frozenset({"old_logprobs"}),
    clips=None,
)
PRIME_RL = _masked(
    "prime_rl",
    "prime-rl, after arXiv 2602.04879",
    PrimeRLParams,
    reweight=prime_rl,
    flat_group_is_inert=False,
)
DRO = _quadratic("dro", "DRO, arXiv 2405.19107")
KIMI = _quadratic(
    "kimi",
    "Kimi k1.5, arXiv 2501.12599",
    log_ratio=log_product,
    needs=frozenset({"sequence_advantages"}),
)
OPD = _free(
    "opd",
    "On-policy distillation, thinkingmachines.ai/blog",
    OPDParams,
    to_teacher,
    per_token=frozenset({"advantages"}),
    needs=frozenset({"ref_logprobs", "teacher"}),
)
