"""Log-ratios of tokens and of whole sequences, cut with the gradient that methods want.

Shapes as in surrogate.py: [B,S] per token, [B,1] per sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_algos.algorithms.core.surrogate import token_counts


def clamp(x: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """x cut to [low, high]; the gradient passes at a bound, where torch's versions differ."""
    return _kept(x, x.detach().clamp(min=low).clamp(max=high))  # pyright: ignore


def _kept(x: Tensor, cut: Tensor) -> Tensor:
    return x.where(x == cut, cut) if x.requires_grad else cut


def expm1(x: Tensor) -> Tensor:
    """e^x - 1. On the CPU by way of float64, whose kernel is six times as fast as float32's."""
    return torch.expm1(x.double() if x.is_cpu else x).to(x.dtype)


def sequence_sum(values: Tensor, limit: float) -> Tensor:
    """[B,S] -> [B,1] sum over a row that is 0 off the mask, clamped again."""
    return clamp(values.sum(1, keepdim=True), -limit, limit)


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """[B,S] -> [B,1] mean over the mask of a row that is 0 off it; 0 for an empty row."""
    return values.sum(1, keepdim=True) / token_counts(mask).clamp(min=1)[:, None]


def one_sided_clip(
    log_ratio: Tensor, advantages: Tensor, low: Tensor | float, high: Tensor | float
) -> Tensor:
    """log u with u A = min(r A, clip(r) A); at a bound the gradient passes.

    u = min(r, 1+high) for A > 0 and max(r, 1-low) for A <= 0.
    """
    own, dtype = log_ratio.detach(), log_ratio.dtype
    # not `where` of two numbers: a GPU would be waited for
    below, above = own.minimum(log1p(high, dtype)), own.maximum(log1p(-low, dtype))
    return _kept(log_ratio, torch.where(advantages > 0, below, above))


def log1p(bound: Tensor | float, dtype: torch.dtype) -> Tensor:
    """log(1 + bound), -inf from -1 downwards; of a number: a scalar on the CPU."""
    return torch.log1p(torch.as_tensor(bound, dtype=dtype).clamp(min=-1))
