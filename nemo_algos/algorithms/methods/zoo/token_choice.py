"""GRPO on some tokens only, chosen once per rollout batch over all its response tokens.

    high_entropy   A_it = A_i where H_t >= the (1 - share) quantile of H, else 0       2506.01939
    clip_cov       A_it = 0 for the share of tokens with the largest lower < C_t < upper
    kl_cov         J = mean r A, and -kl_coef |l| for the share with the largest C_t   2505.22617
    m2po           A_it = A_i for the most tokens whose mean (log pi_old - log pi_gen)^2 stays
                   below the threshold, the smallest first, else 0                     2510.01161

with C_t = (A_i - mean A)(log pi_t - mean log pi), means over the batch's tokens. J divides by all
tokens, chosen or not.

Deliberate variants: entropies, C_t and ratios are those of pi_old. The papers and verl choose from
the current policy within each micro-batch, which no driver half knows; at the first update of a
batch both are the same. clip_cov: the paper draws its share of the candidates at random, here the
largest are taken, so that no order of the batch matters. m2po, as AReaL documents it: no clipping.
AReaL chooses per micro-batch and divides by the tokens kept; off-policy data also wants
`loss_fn.use_importance_sampling_correction`. high_entropy is TRL's, with DAPO's bounds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms.kernel import Method, Signal, Signals, group_advantages, no_bounds
from nemo_algos.algorithms.params import ClipParams, OfAdvantages, OfBounds, OfLoss, Params, Std

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


class HighEntropyParams(ClipParams):
    """share: of the batch's tokens, those of the highest entropy."""

    clip_high: OfBounds[float] = Field(default=0.28, ge=0)
    share: OfAdvantages[float] = Field(default=0.2, gt=0, le=1)


class ClipCovParams(ClipParams):
    """share: of the batch's tokens, at most; lower, upper: their covariance lies between."""

    share: OfAdvantages[float] = Field(default=2e-4, gt=0, le=1)
    lower: OfAdvantages[float] = 1.0
    upper: OfAdvantages[float] = 5.0


class KLCovParams(Params):
    """share: of the batch's tokens; kl_coef: of |l| there."""

    advantage_std: OfAdvantages[OfLoss[Std]] = "sample"
    share: float = Field(default=2e-4, gt=0, le=1)
    kl_coef: float = Field(default=1.0, ge=0)


class M2POParams(Params):
    """threshold: of the mean squared log-ratio of the tokens kept, nats^2."""

    threshold: OfAdvantages[float] = Field(default=0.04, gt=0)


def _only(chosen: Tensor, rollouts: Rollouts, params: Params, name: str) -> Signal:
    """The group advantage on the chosen tokens, [B,S]."""
    values = group_advantages(rollouts, params).value[:, None].where(chosen, 0.0)
    tokens = max(1, int(rollouts.mask.sum()))
    return Signal(values, {f"{name}/chosen_share": int(chosen.sum()) / tokens})


def high_entropy(rollouts: Rollouts, params: HighEntropyParams) -> Signal:
    """A_it = A_i on the tokens of the highest entropy, else 0, [B,S]."""
    assert rollouts.entropy is not None
    values, mask = rollouts.entropy.double(), rollouts.mask
    ranked = values[mask].sort().values  # torch's quantile takes no more than 2^24
    if len(ranked) == 0:
        return _only(mask, rollouts, params, "high_entropy")
    rank = (1 - params.share) * (len(ranked) - 1)
    low, high = ranked[int(rank)], ranked[min(int(rank) + 1, len(ranked) - 1)]
    return _only(mask & (values >= low.lerp(high, rank % 1)), rollouts, params, "high_entropy")


def clip_cov(rollouts: Rollouts, params: ClipCovParams) -> Signal:
    """A_it = 0 on the share of tokens of the largest covariance in bounds, else A_i, [B,S]."""
    covariance = _covariance(rollouts, params)
    inside = (covariance > params.lower) & (covariance < params.upper)
    dropped = _largest(covariance.masked_fill(~inside, -float("inf")), rollouts.mask, params.share)
    return _only(rollouts.mask & ~dropped, rollouts, params, "clip_cov")


def penalised(rollouts: Rollouts, params: KLCovParams) -> Signal:
    """1 on the share of tokens with the largest covariance, else 0, [B,S]."""
    return Signal(_largest(_covariance(rollouts, params), rollouts.mask, params.share).double())


def kl_cov(log_ratio: Tensor, mask: Tensor, signals: Signals, params: KLCovParams) -> Tensor:
    """A'_it with r A'_it = r A_i - kl_coef sign(l) on the penalised: the gradient of -|l|."""
    slope = params.kl_coef * log_ratio.sign() * (-log_ratio).exp()
    return signals.advantages - signals.extras["penalised"] * slope


def m2po(rollouts: Rollouts, params: M2POParams) -> Signal:
    """A_it = A_i on the most tokens whose mean (old - gen)^2 is below the threshold, [B,S]."""
    assert rollouts.gen_logprobs is not None
    squared = (rollouts.old_logprobs.double() - rollouts.gen_logprobs.double()).square()
    ranked = squared[rollouts.mask].sort().values
    if len(ranked) == 0:
        return _only(rollouts.mask, rollouts, params, "m2po")
    means = ranked.cumsum(0) / ranked.new_ones(len(ranked)).cumsum(0)
    kept = max(1, int((means < params.threshold).sum()))
    return _only(_top(-squared, rollouts.mask, kept), rollouts, params, "m2po")


def _covariance(rollouts: Rollouts, params: Params) -> Tensor:
    """C_t = (A_i - mean A)(log pi_old - mean), [B,S]; -inf off the mask."""
    mask, lengths = rollouts.mask, rollouts.lengths
    tokens = lengths.sum().clamp(min=1)
    values = group_advantages(rollouts, params).value
    logprobs = rollouts.old_logprobs.double().where(mask, 0.0)
    gap = logprobs - logprobs.sum() / tokens
    centred = values - (values * lengths).sum() / tokens
    return (centred[:, None] * gap).where(mask, -float("inf"))


def _largest(values: Tensor, mask: Tensor, share: float) -> Tensor:
    """Bool [B,S]: the share of the mask's tokens with the largest finite values, at least one."""
    own = values[mask]
    return _top(values, mask, min(len(own), max(1, int(len(own) * share)))) & values.isfinite()


def _top(values: Tensor, mask: Tensor, count: int) -> Tensor:
    """Bool [B,S]: the `count` largest values on the mask; of equal ones the first come first."""
    if not count:
        return mask.new_zeros(mask.shape)
    least = values[mask].topk(count).values.amin()
    above, ties = (values > least) & mask, (values == least) & mask
    rank = ties.flatten().cumsum(0).view(ties.shape)
    return above | (ties & (rank <= count - above.sum()))


_choice = partial(Method, mean="token", per_token=frozenset({"advantages"}))
HIGH_ENTROPY = _choice(
    "high_entropy",
    "Beyond the 80/20 rule, arXiv 2506.01939",
    HighEntropyParams,
    high_entropy,
    needs=frozenset({"entropy"}),
)
CLIP_COV = _choice("clip_cov", "Clip-Cov, arXiv 2505.22617", ClipCovParams, clip_cov)
KL_COV = Method(
    "kl_cov",
    "KL-Cov, arXiv 2505.22617",
    KLCovParams,
    constant_bounds=no_bounds,
    extras={"penalised": penalised},
    reweight=kl_cov,
    per_token=frozenset({"penalised"}),
    clips=None,
    mean="token",
    flat_group_is_inert=False,
)
M2PO = _choice(
    "m2po",
    "M2PO, arXiv 2510.01161",
    M2POParams,
    m2po,
    constant_bounds=no_bounds,
    needs=frozenset({"gen_logprobs"}),
)
