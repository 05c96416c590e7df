"""Blocks of e4m3, emulated: rounded numbers in the dtype that they came in."""

import torch
import torch.nn.functional as F
from torch import Tensor

E4M3_MAX, SMALLEST_AMAX = 448.0, 1e-30


def e4m3(size: int, x: Tensor, square: bool) -> Tensor:
    """x [M,N] in e4m3, in blocks of size x size or 1 x size, each with the scale amax / 448."""
    (m, n), rows = x.shape, size if square else 1
    padded = F.pad(x, (0, -n % size, 0, -m % rows))
    blocks = padded.unflatten(1, (-1, size)).unflatten(0, (-1, rows))
    # a floor, since casts beyond 448 give NaN and the quotient by a subnormal scale may lie there
    scale = blocks.abs().amax((1, 3), keepdim=True).clamp(min=SMALLEST_AMAX) / E4M3_MAX
    rounded = (blocks / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale
    return rounded.flatten(2).flatten(0, 1)[:m, :n]
