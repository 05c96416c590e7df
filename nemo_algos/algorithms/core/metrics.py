"""Metrics as sums and counts, so that they are right under micro-batching and data parallelism.

Every worker call returns a `Stats`; add them up over micro-batches and ranks and call `summary`
once. Quantiles come from a fixed histogram of counts, uniform in log r' (log-spaced in r').
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nemo_algos.algorithms.core.surrogate import log1p
from nemo_algos.algorithms.shapes import Mask, PerToken

BINS = 8000  # over +-20: a bin is 0.5 % of the ratio
REACH = 20.0


@dataclass
class Stats:
    """sums: name -> float64 scalar; histogram [BINS] of log r' over tokens; largest log r' seen."""

    sums: dict[str, Any]
    histogram: Tensor
    max_log_ratio: Tensor

    @staticmethod
    def empty() -> Stats:
        """The neutral element of the sum."""
        return Stats({}, torch.zeros(BINS, dtype=torch.float64), torch.tensor(-REACH))

    def __add__(self, other: Stats) -> Stats:
        names = self.sums | other.sums
        sums = {k: self.sums.get(k, 0.0) + other.sums.get(k, 0.0) for k in names}
        top = torch.maximum(self.max_log_ratio, other.max_log_ratio)
        return Stats(sums, self.histogram + other.histogram, top)

    def summary(self, updates: int = 1) -> dict[str, float]:
        """The metrics, in nats and shares; a share of nothing is left out.

        updates: how many optimizer batches these are of: the loss and its parts are means of them.
        """
        s = {k: float(v) for k, v in self.sums.items()}
        own = [k for k in s if k.startswith("terms/")]
        out = {}
        for k in ("loss", "kl_loss", *own):
            if k in s:
                out[k] = s[k] / updates
        if "nonfinite_tokens" in s:
            out["nonfinite_tokens"] = s["nonfinite_tokens"]
        for name, (total, count) in MEANS.items():
            if total in s and s[count] > 0:
                out[name] = s[total] / s[count]
        if s.get("tokens", 0) > 0:
            out["ratio/max"] = float(self.max_log_ratio.exp())
            out["ratio/p99"] = min(self._quantile(0.99), out["ratio/max"])  # of a bin's upper edge
        return out

    def _quantile(self, q: float) -> float:
        """The upper edge of the bin that holds the quantile."""
        rank = self.histogram.cumsum(0)
        index = int(torch.searchsorted(rank, q * float(rank[-1])))
        return float(torch.tensor(-REACH + 2 * REACH * (index + 1) / BINS).exp())


# name: (sum, what divides it), for both engines; a clip by sign is a share of that sign's tokens
MEANS = {
    "clip/fraction": ("clipped", "tokens"),
    "clip/positive_above": ("positive_above", "positive"),
    "clip/positive_below": ("positive_below", "positive"),
    "clip/negative_above": ("negative_above", "negative"),
    "clip/negative_below": ("negative_below", "negative"),
    "ratio/mean": ("ratio", "tokens"),
    "ratio/clamped_tokens": ("clamped_tokens", "tokens"),
    "ratio/clamped_sequences": ("clamped_sequences", "sequences"),
    "kl/old": ("kl_old", "tokens"),
    "kl/old_sequence": ("kl_old_sequence", "sequences"),
    "kl/ref": ("kl_ref", "tokens"),
    "correction/rejected_tokens": ("rejected", "tokens"),
    "entropy/updated": ("entropy", "tokens"),
    "entropy/approximate": ("approximate_entropy", "tokens"),
}


@torch.no_grad()
def ratio_stats(
    log_ratio: PerToken, shaped: Tensor, logprobs: PerToken, mask: Mask, limit: float
) -> Stats:
    """Statistics of l [B,S], clamped, 0 off the mask, and of shaped: log r', [B,S] or [B,1]."""
    tokens = shaped.where(mask, -torch.inf)
    logprobs = logprobs.to(log_ratio.dtype).where(mask, 0.0)
    ratio = log_ratio.exp()
    sums = ratio_sums(log_ratio, ratio, shaped, mask.to(log_ratio.dtype), limit)
    sums["approximate_entropy"] = -(ratio * logprobs).sum()
    top = tokens.max().clamp(min=-REACH) if mask.numel() else tokens.new_tensor(-REACH)
    return Stats(sums, _histogram(tokens), top)


@torch.no_grad()
def ratio_sums(
    log_ratio: PerToken, ratio: Tensor, shaped: Tensor, weight: Tensor, limit: float
) -> dict[str, Tensor]:
    """Sums of l [B,S], 0 off the mask, of e^l, and of log r' [B,S] or [B,1].

    weight [B,S]: the mask as 0 and 1 in their dtype; limit: where l was clamped, inf if nowhere.
    """
    lengths = weight.sum(1)
    row_sum = log_ratio.sum(1)
    reach = min(limit, REACH)
    in_sequence = row_sum.clamp(-reach, reach)
    clamped = _compare(torch.ge, log_ratio.abs(), limit).sum(1)
    cut = _compare(torch.ge, row_sum.abs(), limit)
    shaped_ratio = ratio if shaped is log_ratio else shaped.exp()
    rows = {
        "tokens": lengths,
        "sequences": _compare(torch.gt, lengths, 0),
        "ratio": (shaped_ratio * weight).sum(1),
        "clamped_tokens": clamped,
        "clamped_sequences": _compare(torch.gt, cut + clamped, 0),
        # E_old[r - 1 - log r] = KL(old || new) of tokens; E_old[s log s - s + 1] = KL(new || old)
        "kl_old": (ratio - 1).sub_(log_ratio).sum(1),
        "kl_old_sequence": in_sequence.exp() * in_sequence - torch.expm1(in_sequence),
    }
    return dict(zip(rows, torch.stack([*rows.values()]).sum(1), strict=True))


def _compare(how: Callable[..., Tensor], a: Tensor, b: Tensor | float) -> Tensor:
    """0 and 1 in a's dtype, which torch's CPU compares three times as fast as into bools."""
    return how(a, b, out=a.new_empty(0))


def _histogram(log_values: Tensor) -> Tensor:
    """[BINS] float64 counts; -inf, off the mask, has the first bin of its own, which is dropped."""
    bins = ((log_values + REACH) * (BINS / (2 * REACH)) + 1).clamp(0, BINS).int()
    return torch.bincount(bins.flatten(), minlength=BINS + 1)[1:].double()


@torch.no_grad()
def clip_sums(
    log_ratio: PerToken,
    advantages: Tensor,
    low: Tensor | float,
    high: Tensor | float,
    weight: Tensor,
) -> dict[str, Tensor]:
    """Tokens outside the bounds by sign of the advantage and side; weight [B,S]: see ratio_sums."""
    outside = {
        "": weight,
        "_above": _compare(torch.gt, log_ratio, log1p(high, log_ratio.dtype)) * weight,
        "_below": _compare(torch.lt, log_ratio, log1p(-low, log_ratio.dtype)) * weight,
    }
    if advantages.shape[1] == 1:
        outside = {k: tokens.sum(1, keepdim=True) for k, tokens in outside.items()}
    sides = {"positive": torch.gt, "negative": torch.lt}
    signs = {}
    for sign, beyond in sides.items():
        signs[sign] = _compare(beyond, advantages, 0)
    sums = dict[str, Tensor]()
    for sign, rows in signs.items():
        for side, tokens in outside.items():
            sums[sign + side] = (tokens * rows).sum()
    return {**sums, "clipped": sums["positive_above"] + sums["negative_below"]}
