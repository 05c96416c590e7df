"""The clipped surrogate that every method feeds, and its mean over an optimizer batch.

Shapes: [B,S] per token, [B,1] where a value is the same at each token of a sequence; both
broadcast. Everything is float32 (float64 when the log-probs are), whatever the model's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nemo_algos.algorithms.shapes import Mask, PerToken


def clamp(x: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """x cut to [low, high]; the gradient passes at a bound (torch.clamp's differs by version)."""
    return _kept(x, x.detach().clamp(min=low).clamp(max=high))  # pyright: ignore


def _kept(x: Tensor, cut: Tensor) -> Tensor:
    """`cut`, with x's gradient where nothing was cut."""
    if x.requires_grad:
        return x.where(x == cut, cut)
    return cut


def expm1(x: Tensor) -> Tensor:
    """e^x - 1. On the CPU by way of float64, whose kernel is six times as fast as float32's."""
    return torch.expm1(x.double() if x.is_cpu else x).to(x.dtype)


def sequence_sum(values: Tensor, limit: float) -> Tensor:
    """[B,S] -> [B,1] sum of values, 0 off the mask; clamped, as each of them already is."""
    return clamp(values.sum(1, keepdim=True), -limit, limit)


def sequence_mean(values: Tensor, mask: Mask) -> Tensor:
    """[B,S] -> [B,1] mean over the mask of a row that is 0 off it; 0 for an empty row."""
    return values.sum(1, keepdim=True) / token_counts(mask).clamp(min=1)[:, None]


def one_sided_clip(
    log_ratio: PerToken, advantages: Tensor, low: Tensor | float, high: Tensor | float
) -> Tensor:
    """log u with u A = min(r A, clip(r) A); at a bound the gradient passes.

    u = min(r, 1+high) for A > 0 and max(r, 1-low) for A <= 0.
    """
    own = log_ratio.detach()
    dtype = log_ratio.dtype
    # torch.where of two CPU scalars would copy them to the GPU and wait for it
    below = own.minimum(log1p(high, dtype))
    above = own.maximum(log1p(-low, dtype))
    return _kept(log_ratio, torch.where(advantages > 0, below, above))


def log1p(bound: Tensor | float, dtype: torch.dtype) -> Tensor:
    """log(1 + bound), -inf from -1 downwards; of a number: a scalar on the CPU."""
    return torch.log1p(torch.as_tensor(bound, dtype=dtype).clamp(min=-1))


Mean = Literal["sequence", "token"]


@dataclass(frozen=True)
class Counts:
    """What a mean divides by: sequences with tokens, and tokens, of the WHOLE optimizer batch."""

    sequences: float
    tokens: float

    @staticmethod
    def of(mask: Mask) -> Counts:
        """Counts of a mask [B,S]; add those of all micro-batches (of all ranks: `rank_counts`)."""
        lengths = token_counts(mask)
        return Counts(float((lengths > 0).sum()), float(lengths.sum()))

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.sequences + other.sequences, self.tokens + other.tokens)


def working_dtype(tensor: Tensor) -> torch.dtype:
    """float64 stays; anything else is computed in float32."""
    if tensor.dtype == torch.float64:
        return torch.float64
    return torch.float32


def token_counts(mask: Mask) -> Tensor:
    """[B,S] bool -> [B] int32; torch's default, int64, first copies the mask at 8 bytes a token."""
    return mask.sum(1, dtype=torch.int32)


def as_number(mask: Mask) -> Tensor:
    """0 and 1 for products: torch's CPU multiplies by uint8 three times as fast as by bool."""
    return mask.view(torch.uint8)


def difference(a: Tensor, b: Tensor, mask: Mask, limit: float) -> Tensor:
    """a - b on the mask, else 0, cut to +-limit; the gradient passes at the limit, not beyond."""
    dtype = working_dtype(a)
    gap = a.to(dtype) - b.to(dtype)
    cut = gap.detach().clamp(-limit, limit).where(mask, 0.0)
    if gap.requires_grad:
        return gap.where(mask & (gap == cut), cut)
    return cut


def clipped_surrogate(
    log_ratio: PerToken,
    advantages: Tensor,
    low: Tensor | float = torch.inf,
    high: Tensor | float = torch.inf,
    dual_clip: float | None = None,
) -> Tensor:
    """min(r A, clip(r, 1-low, 1+high) A) with r = exp(log_ratio), [B,S] or [B,1].

    At a bound the gradient passes. dual_clip c > 1 (arXiv 1912.09729): for A < 0 the ratio is also
    cut at c.
    """
    ratio = log_ratio.exp()
    gain = ratio * advantages
    if not all(isinstance(bound, float) and bound == torch.inf for bound in (low, high)):
        cut = ratio.detach().clamp(min=1 - low).clamp(max=1 + high) * advantages  # pyright: ignore
        gain = gain.where(gain <= cut, cut)
    if dual_clip is not None:
        floor = dual_clip * advantages
        gain = gain.where((advantages >= 0) | (gain >= floor), floor)
    return gain


def reduce(terms: Tensor, mask: Mask, mean: Mean, counts: Counts) -> Tensor:
    """The mean of terms, [B,S] or [B,1] (the same at each token), over the whole optimizer batch.

    sequence: sum_i (1/|o_i|) sum_t x_it / sequences; token: sum x / tokens. Additive over
    micro-batches.
    """
    lengths = token_counts(mask)
    if terms.shape == mask.shape:
        rows = terms.where(mask, 0.0).sum(1)
    else:
        rows = terms[:, 0].where(lengths > 0, 0.0) * lengths
    if mean == "token":
        return rows.sum() / max(counts.tokens, 1.0)
    return (rows / lengths.clamp(min=1)).sum() / max(counts.sequences, 1.0)
