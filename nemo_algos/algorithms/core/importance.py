"""Weights of, and verdicts on, tokens that another policy sampled: the formulas.

log_ratio [B,S]: log pi - log pi_sampler of each token, nats, 0 off the mask (`gap`), without
gradient. What is one number for a sequence is [B,1].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from nemo_algos.algorithms.core.surrogate import sequence_mean, token_counts, working_dtype
from nemo_algos.algorithms.shapes import Mask, PerToken

Level = Literal["token", "geometric", "sequence"]
Cut = Literal["tis", "icepop", "seq-mask-tis"]
Weights = tuple[Cut | None, float, float]  # how weights are cut, and the bounds
LIMIT = 20.0  # of a log-ratio before exp, of a token or of a sequence: verl's SAFETY_BOUND
DIVERGENCES = {
    "k1": lambda x: -x,
    "k2": lambda x: 0.5 * x.square(),
    "k3": lambda x: torch.expm1(x) - x,
}
POOLS = {
    "token": lambda values, mask: values,
    "seq_sum": lambda values, mask: values.sum(1, keepdim=True),
    "seq_mean": sequence_mean,
    "seq_max": lambda values, mask: values.amax(1, keepdim=True),
}


LEVELS = {"token": POOLS["token"], "geometric": POOLS["seq_mean"], "sequence": POOLS["seq_sum"]}


def gap(logprobs: PerToken, gen_logprobs: PerToken, mask: Mask) -> Tensor:
    """log_ratio: logprobs - gen_logprobs on the mask, 0 elsewhere."""
    dtype = working_dtype(logprobs)
    return (logprobs.detach().to(dtype) - gen_logprobs.to(dtype)).where(mask, 0.0)


def importance(
    log_ratio: PerToken,
    mask: Mask,
    level: Level,
    cut: Cut | None = None,
    low: float = 0.0,
    high: float = math.inf,
) -> Tensor:
    """w = pi / pi_sampler: per token [B,S], or of a sequence its geometric mean or product [B,1].

    tis: w cut to [low, high]; icepop: w = 0 outside [low, high]; seq-mask-tis: w = 0 in sequences
    whose geometric mean of the tokens' ratios is outside.
    """
    weights = LEVELS[level](log_ratio, mask).clamp(-LIMIT, LIMIT).exp()
    if cut is None:
        return weights
    if cut == "tis":
        return weights.clamp(low, high)
    judged = weights if cut == "icepop" else sequence_mean(log_ratio, mask).exp()
    return weights.where((judged >= low) & (judged <= high), 0.0)


def centering(logprobs: Tensor, gen_logprobs: Tensor, cut: Weights | None) -> PerToken:
    """C [B,S] = sum over v of sg[q_v f(p_v / q_v) - alpha p_v] log p_v, alpha = rho f(1 / rho).

    Its gradient is the mean of f grad log p under the sampler (arXiv 2609.20807, eq. 12 and 14).
    logprobs, gen_logprobs [B,S,K]: log p, with gradient, and log q of the same K tokens v, both of
    whole vocabularies. Of the other tokens q is taken for rho p, so that each sums to 1. cut: how
    the weight f is cut; None: f is 1.
    """
    p = logprobs.detach().exp()
    q = gen_logprobs.to(p).exp()
    left = (1 - p.sum(-1, keepdim=True)).clamp(min=1e-6)
    rho = (1 - q.sum(-1, keepdim=True)).clamp(min=0) / left
    alpha = _weighed(torch.ones_like(rho), rho, cut)
    return ((_weighed(p, q, cut) - alpha * p) * logprobs).sum(-1)


def _weighed(p: Tensor, q: Tensor, cut: Weights | None) -> Tensor:
    """q f(p / q), also where q is 0."""
    if cut is None:
        return q
    kind, low, high = cut
    if kind == "tis":
        return p.clamp(low * q, high * q)
    if kind == "icepop":
        return p.where((p >= low * q) & (p <= high * q), 0.0)
    return p


def mean_weight(weights: Tensor, mask: Mask) -> Tensor:
    """Of tokens, where the weights are [B,S]; of sequences with tokens, where [B,1]. A scalar."""
    taken = mask if weights.shape == mask.shape else mask.any(1, keepdim=True)
    return weights.where(taken, 0.0).sum() / taken.sum().clamp(min=1)


def weight_metrics(weights: Tensor, raw: Tensor, mask: Mask) -> dict[str, float]:
    """Of the tokens' weights, cut and raw; ess: (sum w)^2 / (n sum w^2), the share that counts."""
    cut, raw = (w.expand(mask.shape)[mask].double() for w in (weights, raw))
    if not len(cut):
        return {}
    mean = cut.mean()
    square = cut.square().mean()
    return {
        "correction/weight_mean": float(mean),
        "correction/weight_max": float(raw.max()),
        "correction/cut_tokens": float((cut != raw).double().mean()),
        "correction/ess": float(mean.square() / square) if square > 0 else 0.0,
    }


def divergence(log_ratio: PerToken, mask: Mask, option: str) -> Tensor:
    """POOL_KIND of the options: the estimator of each token, pooled over its sequence or not.

    k1 = -l, k2 = l^2 / 2, k3 = e^l - 1 - l, all 0 off the mask.
    """
    pool, _, kind = option.rpartition("_")
    return POOLS[pool](DIVERGENCES[kind](log_ratio.clamp(-LIMIT, LIMIT)), mask)


def kept_tokens(
    log_ratio: PerToken, mask: Mask, bounds: Mapping[str, tuple[float, float]]
) -> Tensor:
    """The mask [B,S] without what has a divergence outside its (low, high), by option."""
    keep = mask
    for option, (low, high) in bounds.items():
        found = divergence(log_ratio, mask, option)
        keep = keep & (found >= low) & (found <= high)
    return keep


def length_ratio(kept: Tensor, mask: Mask) -> Tensor:
    """[B,1]: a row's tokens over those kept; a row mean over all times this is over the kept."""
    return token_counts(mask)[:, None] / token_counts(kept).clamp(min=1)[:, None]
