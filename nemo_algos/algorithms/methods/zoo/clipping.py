"""Methods that change what a token's ratio may weigh: gates, clips and trust regions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import DriverOutput, Method, Signals, no_bounds
from nemo_algos.algorithms.record import ClipParams, OfAdvantages, OfBounds, Params, Std

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts
    from nemo_algos.algorithms.shapes import Mask, PerToken


WINDOW = 128  # positions that one matrix of FIPO's decays spans
TINY = 1e-8  # added to DPPO's probability of all other tokens, as verl's


class SAPOParams(Params):
    """Temperatures of the gate; the larger, the sooner it fades."""

    tau_positive: float = Field(default=1.0, gt=0)
    """Temperature for tokens with A > 0 (tau_pos)."""
    tau_negative: float = Field(default=1.05, gt=0)
    """Temperature for tokens with A <= 0 (tau_neg); above tau_positive in the paper."""


def sapo_log_ratio(log_ratio: PerToken, mask: Mask, signals: Signals, params: SAPOParams) -> Tensor:
    """SAPO, soft adaptive policy optimization: a smooth gate instead of the clip.

        J = mean f(r) A, f(r) = (4 / tau) sigmoid(tau (r - 1))                tau by the sign of A

    Why: the clip's gradient is all or nothing. This gate has the slope of r at r = 1 and fades on
    both sides, faster where A < 0, since pushing one token down lifts many that were never sampled.

    f(1) = 2 / tau, so `ratio/mean` is near 2. verl's is a sequence mean whatever its config says.

    Returns log f(r_t), [B,S].
    """
    A = signals.advantages
    tau = A.new_full(A.shape, params.tau_negative).masked_fill(A > 0, params.tau_positive)
    gate = (tau * core.surrogate.expm1(log_ratio)).neg().exp().log1p().neg()
    return (gate + (4 / tau).log()).where(mask, 0.0)


SAPO = Method(
    name="sapo",
    paper="SAPO, arXiv 2511.20347",
    params=SAPOParams,
    constant_bounds=no_bounds,
    log_ratio=sapo_log_ratio,
    clips=None,
)


class ASPOParams(ClipParams):
    """GRPO's clip range, and a limit of the weight."""

    cap: float = Field(default=3.0, gt=1)
    """The largest weight, for both signs of A."""


def aspo_reweight(log_ratio: PerToken, mask: Mask, signals: Signals, params: ASPOParams) -> Tensor:
    """ASPO, asymmetric importance sampling: the reciprocal ratio where A > 0.

        J = mean sg[w] A log pi     w = min(1 / r, cap)    A > 0, while r <= 1 + clip_high, else 0
                                      = min(r, cap)        A < 0, while r >= 1 - clip_low, else 0

    Why: where A > 0 the ratio gives the larger step to tokens that have already become likelier,
    and those that fell behind wait. Its reciprocal does the opposite: they catch up.

    The authors' code (Archer2.0) has the cap of 3 for both signs, and clips that differ by entropy;
    their loss has other values and this gradient.

    Returns A'_it = w_it A_i, [B,S].
    """
    A = signals.advantages
    ratio = log_ratio.exp()
    flipped = log_ratio.neg().exp().where(ratio <= 1 + signals.high, 0.0)
    weight = flipped.where(A > 0, ratio.where(ratio >= 1 - signals.low, 0.0))
    return weight.clamp(max=params.cap) * A


ASPO = Method(
    name="aspo",
    paper="ASPO, arXiv 2510.06062",
    params=ASPOParams,
    reweight=aspo_reweight,
    form="logprob",
    clips="weight",
    mean="token",
)


class CEGPPOParams(ClipParams):
    """DAPO's clip range, and how much gradient is left beyond it."""

    clip_high: OfBounds[float] = Field(default=0.28, ge=0)
    beta_low: float = Field(default=0.75, ge=0)
    """Share of the gradient that remains below 1 - clip_low; 0: none (beta_1)."""
    beta_high: float = Field(default=1.0, ge=0)
    """The same above 1 + clip_high (beta_2)."""


def ce_gppo_reweight(
    log_ratio: PerToken, mask: Mask, signals: Signals, params: CEGPPOParams
) -> Tensor:
    """CE-GPPO: a token beyond its clip keeps a gradient.

        J = mean r_it A_i w_it
        w_it = beta_low (1 - clip_low) / sg[r_it]      A < 0, r < 1 - clip_low
             = beta_high (1 + clip_high) / sg[r_it]    A > 0, r > 1 + clip_high
             = 1                                       else

    Why: clipped tokens are mostly unlikely ones, whose gradients hold the entropy up (A > 0) or
    keep it from growing (A < 0). Here they keep a gradient of the size that it has at the clip,
    times beta.

    The betas are those of the authors' code, the clips DAPO's; GPPO (Klear-Reasoner, 2508.07629)
    has both betas 1. Their code also cuts r at 3 for A < 0, which the paper does not.

    Returns A'_it = A_i w_it, [B,S].
    """
    A = signals.advantages
    ratio = log_ratio.exp()
    low = 1 - signals.low
    high = 1 + signals.high
    weight = (params.beta_low * low / ratio).where((A < 0) & (ratio < low), 1.0)
    return A * (params.beta_high * high / ratio).where((A > 0) & (ratio > high), weight)


CE_GPPO = Method(
    name="ce_gppo",
    paper="CE-GPPO, arXiv 2509.20712",
    params=CEGPPOParams,
    reweight=ce_gppo_reweight,
    clips="weight",
    mean="token",
)


class FIPOParams(ClipParams):
    """DAPO's clip range, the horizon, and limits of the weight."""

    clip_high: OfBounds[float] = Field(default=0.28, ge=0)
    half_life: float = Field(default=32.0, gt=0)
    """Tokens after which a log-ratio counts half."""
    low: float = Field(default=1.0, ge=0, le=1)
    """The smallest weight."""
    high: float = Field(default=1.2, ge=1)
    """The largest weight."""
    safety: float = Field(default=4.0, gt=0)
    """Ratio beyond which a token with A < 0 has its weight in [0.8, 1]."""


def fipo_reweight(log_ratio: PerToken, mask: Mask, signals: Signals, params: FIPOParams) -> Tensor:
    """FIPO, future-KL influenced policy optimization: tokens weigh by what follows.

        A_it = A_i clip(exp(F_t), low, high)    F_t = sum_{k >= t} gamma^(k - t) l_k,
                                                gamma = 2^(-1 / half_life)

    Why: GRPO credits every token of a response alike. F_t says whether training makes the rest of
    the response likelier or not, so tokens that lead where the policy is going get more of the
    credit.

    The defaults are ms-swift's, which counts k - t in positions: here holes (a tool's output) do
    not count.

    Returns A'_it, [B,S].
    """
    weight = _future(log_ratio, mask, -math.log(2) / params.half_life).exp()
    weight = weight.clamp(params.low, params.high)
    unsafe = (signals.advantages < 0) & (log_ratio > math.log(params.safety))
    return signals.advantages * weight.clamp(0.8, 1.0).where(unsafe, weight)


def _future(values: Tensor, mask: Mask, decay: float) -> Tensor:
    """F_t = sum_{k >= t} exp(decay n) v_k, n the mask's tokens from t to k; v is 0 off the mask."""

    def fade(tokens: Tensor) -> Tensor:
        return (tokens.to(values.dtype) * decay).exp()

    rank = mask.cumsum(1)
    future = values.new_zeros(values.shape)
    # F and rank at the first position of the window that follows
    next_future = values.new_zeros(len(values), 1)
    next_rank = rank[:, -1:]
    for start in reversed(range(0, values.shape[1], WINDOW)):
        window = slice(start, start + WINDOW)
        ranks = rank[:, window]
        decays = fade(ranks[:, None] - ranks[:, :, None]).triu()
        inside = (decays @ values[:, window, None])[..., 0]
        future[:, window] = inside + fade(next_rank - ranks) * next_future
        next_future = future[:, start, None]
        next_rank = ranks[:, :1]
    return future


FIPO = Method(
    name="fipo",
    paper="FIPO, arXiv 2603.19835",
    params=FIPOParams,
    reweight=fipo_reweight,
    mean="token",
)


class TVBounds(Params):
    """How far a token's probability may move."""

    low: OfBounds[float] = Field(default=0.2, gt=0)
    """How far a token's probability may fall where A < 0."""
    high: OfBounds[float] = Field(default=0.2, gt=0)
    """How far it may rise where A > 0."""


class TVParams(TVBounds):
    """A limit of the ratio beside."""

    cap: float = Field(default=20.0, gt=1)
    """The largest weight."""


def dppo_tv_bounds(rollouts: Rollouts, params: TVBounds) -> DriverOutput:
    """[1 - low / p, 1 + high / p], [B,S]."""
    inverse = inverse_probability(rollouts)
    return DriverOutput((params.low * inverse, params.high * inverse))


def inverse_probability(rollouts: Rollouts) -> Tensor:
    """1 / p, [B,S], 1 off the mask."""
    dtype = core.surrogate.working_dtype(rollouts.old_logprobs)
    return rollouts.old_logprobs.to(dtype).where(rollouts.mask, 0.0).neg().exp()


def masked_ratio(log_ratio: PerToken, signals: Signals) -> Tensor:
    """r_t within the bound that the sign of A_i says, else 0, [B,S]."""
    ratio = log_ratio.exp()
    below = ratio <= 1 + signals.high
    above = ratio >= 1 - signals.low
    return ratio.where(below.where(signals.advantages > 0, above), 0.0)


def dppo_tv_reweight(log_ratio: PerToken, mask: Mask, signals: Signals, params: TVParams) -> Tensor:
    """DPPO, binary TV: a trust region of probabilities instead of ratios.

        J = mean sg[w] A log pi    w = min(r, cap) while q - p <= high (A > 0) or >= -low (A < 0),
                                   else 0; p, q: a token's probability under pi_old and pi_theta,
                                   r = q / p

    Why: a ratio of 2 moves a token from 0.001 to 0.002, which is nothing, and from 0.4 to 0.8,
    which is a lot; clips cut the first and allow much of the second. A limit on q - p treats both
    as what they are.

    q - p <= high is r <= 1 + high / p: the masks are bounds per token, combine as bounds do and
    count as clips. verl has its actor's clip_ratio_c of 3 as the cap. J has the paper's gradient;
    its value is the score form's.

    Returns A'_it = w_it A_i, [B,S].
    """
    return masked_ratio(log_ratio, signals).clamp(max=params.cap) * signals.advantages


DPPO_TV = Method(
    name="dppo_tv",
    paper="DPPO (binary TV), arXiv 2602.04879",
    params=TVParams,
    bounds=dppo_tv_bounds,
    reweight=dppo_tv_reweight,
    per_token=frozenset({"bounds"}),
    form="logprob",
    clips="weight",
    mean="token",
)


class KLParams(Params):
    """How far a token's two-outcome distribution may move, and a limit of the ratio."""

    low: float = Field(default=0.05, gt=0)
    """The divergence, nats, that a token may reach where A < 0."""
    high: float = Field(default=0.05, gt=0)
    """The same where A > 0."""
    cap: float = Field(default=20.0, gt=1)
    """The largest weight."""


def old_logprobs(rollouts: Rollouts, params: KLParams) -> DriverOutput:
    """log p, [B,S], 0 off the mask."""
    return DriverOutput(rollouts.old_logprobs.where(rollouts.mask, 0.0))


def dppo_kl_reweight(log_ratio: PerToken, mask: Mask, signals: Signals, params: KLParams) -> Tensor:
    """DPPO, binary KL: a trust region of each token's divergence.

        J = mean sg[w] A log pi    w = min(r, cap) while kl(p, q) <= high, or q <= p          A > 0
                                                   while kl(p, q) <= low, or q >= p           A < 0
        kl of two outcomes, this token or another: (1 - p) log((1 - p) / (1 - q)) + p log(p / q)

    Why: as dppo_tv, a limit on how far the distribution moves and not on the ratio, but in nats.
    Only the sampled token's probability is needed, no logits, and a move back to pi_old is never
    cut.

    verl has its actor's clip_ratio_c of 3 as the cap, and 0.2 as the threshold of both divergences.

    Returns A'_it = w_it A_i, [B,S].
    """
    A = signals.advantages
    old = signals.extras["old_logprobs"]
    p = old.exp()
    q = (old + log_ratio).clamp(max=0).exp()
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
    reweight=dppo_kl_reweight,
    per_token=frozenset({"old_logprobs"}),
    form="logprob",
    clips=None,
    mean="token",
)


class PrimeRLParams(TVBounds):
    """DPPO's masks, without its limit of the ratio and without std."""

    advantage_std: OfAdvantages[Std] = "none"
    kl_tau: float = Field(default=1e-3, ge=0)
    """Weight of l^2."""

    @property
    def flat_group_is_inert(self) -> bool:
        return self.kl_tau == 0


def prime_rl_reweight(
    log_ratio: PerToken, mask: Mask, signals: Signals, params: PrimeRLParams
) -> Tensor:
    """prime-rl's default loss until 2026-08: DPPO's masks and a quadratic pull to pi_old.

        J = mean sg[w] A log pi - kl_tau l^2, w = r while q - p <= high (A > 0) or >= -low, else 0

    Why: a mask only stops the gradient that pushes a token further out: unless an advantage of the
    other sign comes, nothing brings it back. The penalty, after Kimi K2.5's (arXiv 2602.02276),
    pulls every token back, the further the harder.

    After arXiv 2602.04879; its only loss is ipo now. p, q: a token's probability under pi_old and
    pi_theta. The gradient is prime-rl's; the value is the score form's.

    Returns A'_it = w_it A_i - 2 kl_tau l_it, [B,S].
    """
    weight = masked_ratio(log_ratio, signals)
    weight = weight.where(log_ratio.abs() < params.max_log_ratio, 0.0)
    return weight * signals.advantages - 2 * params.kl_tau * log_ratio


PRIME_RL = Method(
    name="prime_rl",
    paper="prime-rl, after arXiv 2602.04879",
    params=PrimeRLParams,
    bounds=dppo_tv_bounds,
    reweight=prime_rl_reweight,
    per_token=frozenset({"bounds"}),
    form="logprob",
    clips="weight",
    mean="token",
    flat_group_is_inert=False,
)


class IPOParams(Params):
    """How far a token's probability may be from its sampler's; no std."""

    advantage_std: OfAdvantages[Std] = "none"
    eps: OfBounds[float] = Field(default=0.3, gt=0)
    """Largest difference of a token's two probabilities, up or down."""
    kl_tau: float = Field(default=0.0, ge=0)
    """Weight of l^2."""

    @property
    def flat_group_is_inert(self) -> bool:
        return self.kl_tau == 0

    @property
    def score_form(self) -> bool:
        """The penalty pulls beyond `max_log_ratio` too, where a ratio has no gradient."""
        return self.kl_tau > 0


def ipo_bounds(rollouts: Rollouts, params: IPOParams) -> DriverOutput:
    """[1 - eps / p, 1 + eps / p], [B,S]."""
    distance = params.eps * inverse_probability(rollouts)
    return DriverOutput((distance, distance))


def ipo_reweight(log_ratio: PerToken, mask: Mask, signals: Signals, params: IPOParams) -> Tensor:
    """IPO, prime-rl's only loss since 2026-08: a token that moved too far stops, either way.

        J = mean keep r A - kl_tau l^2    keep = |q - p| <= eps; p, q: a token's probability
                                          under pi_old and pi_theta, r = q / p

    Why: DPPO masks a token only where its advantage pushes it further away. Here the sign of the
    advantage does not matter: what has left the region is not evidence about this policy any more.

    p is prime-rl's sampler's: set `old_policy: sampler`. |q - p| <= eps is two bounds of r,
    1 - eps / p and 1 + eps / p. With kl_tau the gradient is prime-rl's, and the value the score
    form's. `clip/fraction` counts the side that a clip would cut.

    Returns A'_it = keep A_i, [B,S]; with kl_tau A'_it = keep r_it A_i - 2 kl_tau l_it.
    """
    ratio = log_ratio.exp()
    within = (ratio >= 1 - signals.low) & (ratio <= 1 + signals.high)
    kept = signals.advantages.where(within, 0.0)
    if not params.kl_tau:
        return kept
    within_limit = log_ratio.abs() < params.max_log_ratio
    return (ratio * kept).where(within_limit, 0.0) - 2 * params.kl_tau * log_ratio


IPO = Method(
    name="ipo",
    paper="IPO, prime-rl, after arXiv 2602.04879",
    params=IPOParams,
    bounds=ipo_bounds,
    reweight=ipo_reweight,
    per_token=frozenset({"bounds"}),
    clips="weight",
    mean="token",
    flat_group_is_inert=False,
)


class CPPOParams(Params):
    """How far a token may move, less and less as the response has moved before it."""

    delta: float = Field(default=0.15, gt=0)
    """Largest weighted |q - p| of a token that moves where its advantage pushes it."""
    w_min: float = Field(default=0.8, gt=0, le=1)
    """Weight of a response's last token; the first has 1."""
    delta_b: float = Field(default=0.015, ge=0)
    """Divergence per token that a response may spend before a token."""
    calibrated: bool = False
    """Set delta_b by each response's 90 % quantile, within [delta_b, 2 delta_b]."""


def cppo_reweight(log_ratio: PerToken, mask: Mask, signals: Signals, params: CPPOParams) -> Tensor:
    """CPPO: a token's trust region shrinks with what the response before it has moved.

        J    = mean keep r A                                                            no clip
        keep = A (r - 1) <= 0, or w_t D_t <= min(delta, delta + delta_b W - S)
        D_t  = |q - p|, w_t from 1 to w_min along the response, S = sum_{j < t} w_j D_j,
        W    = sum_{j < t} w_j; p, q: a token's probability under pi_old and pi_theta

    Why: an early token's change moves every state behind it, which a limit per token does not see.
    Here the prefix has a budget: once it is spent, later tokens may only move back.

    The paper's main runs take the total variation over the top 20 tokens, the authors' code (UniRL)
    that of the sampled token, as here. p is the sampler's there: set `old_policy: sampler`. For
    base models they set calibrated, with a delta_b of 0.02. No context parallelism may cut a
    response before the loss.

    Returns A'_it = keep A_i, [B,S].
    """
    A = signals.advantages
    old = signals.extras["old_logprobs"]
    moved = ((old + log_ratio).clamp(max=0).exp() - old.exp()).abs().where(mask, 0.0)
    rank = mask.cumsum(1) - 1
    last = (mask.sum(1, keepdim=True) - 1).clamp(min=1)
    weight = (1 - (1 - params.w_min) * rank / last).to(moved.dtype).where(mask, 0.0)
    spent = weight * moved
    before = spent.cumsum(1) - spent
    budget = _budget(moved, mask, params) * (weight.cumsum(1) - weight)
    limit = (params.delta + budget - before).clamp(max=params.delta)
    return A.where((A * log_ratio <= 0) | (spent <= limit), 0.0)


def _budget(moved: Tensor, mask: Mask, params: CPPOParams) -> Tensor | float:
    """delta_b, or each response's, [B,1]."""
    if not params.calibrated:
        return params.delta_b
    quantile = moved.masked_fill(~mask, math.nan).nanquantile(0.9, dim=1, keepdim=True)
    return quantile.nan_to_num().clamp(params.delta_b, 2 * params.delta_b)


CPPO = Method(
    name="cppo",
    paper="CPPO, arXiv 2606.10968",
    params=CPPOParams,
    constant_bounds=no_bounds,
    extras={"old_logprobs": old_logprobs},
    reweight=cppo_reweight,
    per_token=frozenset({"old_logprobs"}),
    clips=None,
    mean="token",
)


class RIPOParams(Params):
    """The radius of each side, and limits of the ratio."""

    delta_low: OfBounds[float] = Field(default=0.05, gt=0)
    """Squared distance on the Fisher sphere that a token may fall."""
    delta_high: OfBounds[float] = Field(default=0.05, gt=0)
    """The same for a token that rises."""
    ratio_lower: float = Field(default=0.5, gt=0, lt=1)
    """The smallest ratio."""
    ratio_upper: float = Field(default=10.0, gt=1)
    """The largest ratio."""


def ripo_bounds(rollouts: Rollouts, params: RIPOParams) -> DriverOutput:
    """RIPO, Riemannian clip: a token's range is a distance between distributions.

        J   = mean min(r A, clip(r, 1 - eps_low, 1 + eps_high) A), r within its limits
        eps = sqrt(delta / p), p: the token's probability under pi_old

    Why: a factor is a small step for an unlikely token and a large one for a likely token. On the
    Fisher sphere's arc the same length is sqrt(delta / p) in the ratio, so that unlikely tokens, by
    which a policy explores, may move further.

    After the authors' laboratory's code (a fork of verl), where a ratio beyond its limits has no
    gradient, also where the clip would let it move back. eps is at least 0.22: never tighter than
    GRPO's 0.2.

    Returns (eps_low, eps_high), [B,S].
    """
    root = inverse_probability(rollouts).sqrt()
    low = (params.delta_low**0.5 * root).clamp(max=1 - params.ratio_lower)
    high = (params.delta_high**0.5 * root).clamp(max=params.ratio_upper - 1)
    return DriverOutput((low, high))


def limited_ratio(log_ratio: PerToken, mask: Mask, signals: Signals, params: RIPOParams) -> Tensor:
    """l within its limits, [B,S]; without gradient beyond them."""
    return log_ratio.clamp(math.log(params.ratio_lower), math.log(params.ratio_upper))


RIPO = Method(
    name="ripo",
    paper="RIPO, arXiv 2607.10169",
    params=RIPOParams,
    bounds=ripo_bounds,
    log_ratio=limited_ratio,
    per_token=frozenset({"bounds"}),
    mean="token",
)


class CFPOParams(Params):
    """Where the penalty outweighs the advantage."""

    epsilon: float = Field(default=0.2, gt=0)
    """Distance of the ratio from 1 at which a token stops."""


def cfpo_reweight(log_ratio: PerToken, mask: Mask, signals: Signals, params: CFPOParams) -> Tensor:
    """CFPO: a parabola in place of the clip.

        J = mean r A - |A| / (2 epsilon) (r - 1)^2

    Why: beyond the clip GRPO has no gradient, so nothing brings a token back that has overshot.
    The parabola has its top at r = 1 + epsilon sgn(A): the gradient fades towards it, and beyond it
    pulls back.

    After three implementations that agree; it is SPO's objective (simple policy optimization,
    arXiv 2401.16025). The gradient is theirs, which grows with r^2; the value is r A'. Beyond
    `max_log_ratio` a token has no gradient.

    Returns A'_it = A_i - |A_i| (r_it - 1) / epsilon, [B,S].
    """
    A = signals.advantages
    return A - A.abs() * core.surrogate.expm1(log_ratio) / params.epsilon


CFPO = Method(
    name="cfpo",
    paper="CFPO, arXiv 2601.22801",
    params=CFPOParams,
    constant_bounds=no_bounds,
    reweight=cfpo_reweight,
    clips=None,
)
