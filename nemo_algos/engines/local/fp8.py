"""Blocks of e4m3, emulated: rounded numbers in the dtype that they came in."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

E4M3_MAX, SMALLEST_AMAX = 448.0, 1e-30


def in_blocks(x: Tensor, rows: int, columns: int, rounded: Callable[..., Tensor]) -> Tensor:
    """x [M,N] in blocks, of which `rounded` is given numbers and largest magnitude."""
    m, n = x.shape
    padded = F.pad(x, (0, -n % columns, 0, -m % rows))
    blocks = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
    largest = blocks.abs().amax((1, 3), keepdim=True)
    return rounded(blocks, largest).flatten(2).flatten(0, 1)[:m, :n]


def e4m3(size: int, x: Tensor, square: bool) -> Tensor:
    """x [M,N] in e4m3, in blocks of size x size or 1 x size, each with the scale amax / 448."""

    def rounded(blocks: Tensor, largest: Tensor) -> Tensor:
        # a floor: casts beyond 448 give NaN, and the quotient by a subnormal scale may lie there
        scale = largest.clamp(min=SMALLEST_AMAX) / E4M3_MAX
        return (blocks / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale

    return in_blocks(x, size if square else 1, size, rounded)
