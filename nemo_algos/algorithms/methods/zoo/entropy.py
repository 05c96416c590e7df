"""Methods that treat the few tokens apart which decide the policy's entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import DriverOutput, Method, Signals, group_advantages, no_bounds
from nemo_algos.algorithms.record import ClipParams, OfAdvantages, OfBounds, OfLoss, Params, Std

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


class HighEntropyParams(ClipParams):
    """DAPO's clip range, and the share of tokens that learn."""

    clip_high: OfBounds[float] = Field(default=0.28, ge=0)
    share: OfAdvantages[float] = Field(default=0.2, gt=0, le=1)
    """Share of the batch's tokens, highest entropy first (the paper's rho)."""


def high_entropy_advantages(rollouts: Rollouts, params: HighEntropyParams) -> DriverOutput:
    """Beyond the 80/20 rule: only the tokens of the highest entropy learn.

        A_it = A_i where H_t >= the (1 - share) quantile of H over the batch's tokens, else 0

    Why: a few tokens of high entropy are the forks that decide a solution; the others follow from
    them, and their gradients mostly add noise. J divides by all tokens, chosen or not.

    H is the entropy of pi_old: the paper and verl choose from the current policy within each
    micro-batch, the same at the first update of a batch. This is TRL's, with DAPO's bounds.

    Returns A_it, [B,S].
    """
    assert rollouts.entropy is not None
    values = rollouts.entropy.double()
    mask = rollouts.mask
    ranked = values[mask].sort().values  # torch's quantile takes no more than 2^24
    if len(ranked) == 0:
        return on_tokens(mask, rollouts, params, "high_entropy")
    rank = (1 - params.share) * (len(ranked) - 1)
    low = ranked[int(rank)]
    high = ranked[min(int(rank) + 1, len(ranked) - 1)]
    chosen = mask & (values >= low.lerp(high, rank % 1))
    return on_tokens(chosen, rollouts, params, "high_entropy")


def on_tokens(chosen: Tensor, rollouts: Rollouts, params: Params, name: str) -> DriverOutput:
    """The group advantage times chosen [B,S], the 0 to 1 of a token that is taken, [B,S]."""
    values = group_advantages(rollouts, params).value[:, None] * chosen
    tokens = max(1, int(rollouts.mask.sum()))
    return DriverOutput(values, {f"{name}/chosen_share": float(chosen.sum()) / tokens})


HIGH_ENTROPY = Method(
    name="high_entropy",
    paper="Beyond the 80/20 rule, arXiv 2506.01939",
    params=HighEntropyParams,
    advantages=high_entropy_advantages,
    per_token=frozenset({"advantages"}),
    mean="token",
    needs=frozenset({"entropy"}),
    whole_batch=True,
)


class ClipCovParams(ClipParams):
    """GRPO's clip range, and which tokens do not learn."""

    share: OfAdvantages[float] = Field(default=2e-4, gt=0, le=1)
    """Share of the batch's tokens, at most (the paper's r)."""
    lower: OfAdvantages[float] = 1.0
    """Candidates have a covariance above it (omega_low)."""
    upper: OfAdvantages[float] = 5.0
    """Candidates have a covariance below it (omega_high)."""


def clip_cov_advantages(rollouts: Rollouts, params: ClipCovParams) -> DriverOutput:
    """Clip-Cov: the few tokens that cost the most entropy do not learn.

        C_t  = (A_i - mean A)(log pi_t - mean log pi)                 means over the batch's tokens
        A_it = 0 for the share of tokens with the largest lower < C_t < upper, else A_i

    Why: a step lowers the entropy by about the covariance of advantage and log-prob, and a few
    tokens hold nearly all of it. Without them the policy learns on and keeps exploring.

    C_t is that of pi_old: the paper and verl choose from the current policy within each
    micro-batch, the same at the first update. The paper draws its share of the candidates at
    random; here the largest are taken, so that no order of the batch matters.

    Returns A_it, [B,S].
    """
    values = covariance(rollouts, params)
    outside = (values <= params.lower) | (values >= params.upper)
    candidates = values.masked_fill(outside, -float("inf"))
    dropped = core.tokens.largest_share(candidates, rollouts.mask, params.share)
    return on_tokens(rollouts.mask.double() - dropped, rollouts, params, "clip_cov")


def covariance(rollouts: Rollouts, params: Params) -> Tensor:
    """C_t = (A_i - mean A)(log pi_old - mean), [B,S]; -inf off the mask."""
    mask = rollouts.mask
    lengths = rollouts.lengths
    tokens = lengths.sum().clamp(min=1)
    values = group_advantages(rollouts, params).value
    logprobs = rollouts.old_logprobs.double().where(mask, 0.0)
    gap = logprobs - logprobs.sum() / tokens
    centred = values - (values * lengths).sum() / tokens
    return (centred[:, None] * gap).where(mask, -float("inf"))


CLIP_COV = Method(
    name="clip_cov",
    paper="Clip-Cov, arXiv 2505.22617",
    params=ClipCovParams,
    advantages=clip_cov_advantages,
    per_token=frozenset({"advantages"}),
    mean="token",
    whole_batch=True,
)


class KLCovParams(Params):
    """Which tokens are pulled back, and how hard."""

    advantage_std: OfAdvantages[OfLoss[Std]] = "sample"
    share: float = Field(default=2e-4, gt=0, le=1)
    """Share of the batch's tokens (the paper's k)."""
    kl_coef: float = Field(default=1.0, ge=0)
    """Weight of |l| there (beta)."""


def penalty_mask(rollouts: Rollouts, params: KLCovParams) -> DriverOutput:
    """1 on the share of tokens with the largest covariance, else 0, [B,S]."""
    values = covariance(rollouts, params)
    return DriverOutput(core.tokens.largest_share(values, rollouts.mask, params.share))


def kl_cov_reweight(
    log_ratio: Tensor, mask: Tensor, signals: Signals, params: KLCovParams
) -> Tensor:
    """KL-Cov: the few tokens that cost the most entropy are pulled back to pi_old.

        J = mean r A - kl_coef |l| on the share of tokens with the largest C_t         C_t: clip_cov

    Why: Clip-Cov's answer to the same finding, softer: the tokens whose advantage and log-prob go
    together most lose entropy fastest, so these, and no others, pay for each step away from pi_old.

    C_t is that of pi_old, as in clip_cov.

    Returns A'_it, [B,S], with r A'_it = r A_i - kl_coef sign(l) on those tokens, the gradient
    of -|l|.
    """
    slope = params.kl_coef * log_ratio.sign() * (-log_ratio).exp()
    return signals.advantages - signals.extras["penalised"] * slope


KL_COV = Method(
    name="kl_cov",
    paper="KL-Cov, arXiv 2505.22617",
    params=KLCovParams,
    constant_bounds=no_bounds,
    extras={"penalised": penalty_mask},
    reweight=kl_cov_reweight,
    per_token=frozenset({"penalised"}),
    clips=None,
    mean="token",
    flat_group_is_inert=False,
    whole_batch=True,
)
