"""Clip-Cov: the few tokens that cost the most entropy do not learn, arXiv 2505.22617.

    C_t  = (A_i - mean A)(log pi_t - mean log pi)                 means over the batch's tokens
    A_it = 0 for the share of tokens with the largest lower < C_t < upper, else A_i

Why: a step lowers the entropy by about the covariance of advantage and log-prob, and a few tokens
hold nearly all of it. Without them the policy learns on and keeps exploring.

C_t is that of pi_old: the paper and verl choose from the current policy within each micro-batch,
the same at the first update. The paper draws its share of the candidates at random; here the
largest are taken, so that no order of the batch matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal, group_advantages
from nemo_algos.algorithms.methods.zoo.high_entropy import on_tokens
from nemo_algos.algorithms.record import ClipParams, OfAdvantages, Params

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


class ClipCovParams(ClipParams):
    """GRPO's clip range, and which tokens do not learn."""

    share: OfAdvantages[float] = Field(default=2e-4, gt=0, le=1)
    """Share of the batch's tokens, at most (the paper's r)."""
    lower: OfAdvantages[float] = 1.0
    """Candidates have a covariance above it (omega_low)."""
    upper: OfAdvantages[float] = 5.0
    """Candidates have a covariance below it (omega_high)."""


def advantages(rollouts: Rollouts, params: ClipCovParams) -> Signal:
    """A_it = 0 on the share of tokens of the largest covariance in bounds, else A_i, [B,S]."""
    values = covariance(rollouts, params)
    outside = (values <= params.lower) | (values >= params.upper)
    candidates = values.masked_fill(outside, -float("inf"))
    dropped = core.tokens.largest_share(candidates, rollouts.mask, params.share)
    return on_tokens(rollouts.mask & ~dropped, rollouts, params, "clip_cov")


def covariance(rollouts: Rollouts, params: Params) -> Tensor:
    """C_t = (A_i - mean A)(log pi_old - mean), [B,S]; -inf off the mask."""
    mask, lengths = rollouts.mask, rollouts.lengths
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
    advantages=advantages,
    per_token=frozenset({"advantages"}),
    mean="token",
    whole_batch=True,
)
