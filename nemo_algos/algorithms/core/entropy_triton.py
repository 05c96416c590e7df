"""The two passes of algorithms/core/entropy.py as Triton kernels, which read the logits once each.

Float32 arithmetic, whatever the dtype of the logits. A program has one row (moments) or one block
of a row (gradient).
"""
# pyright: reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
WARPS = 4


def moments(logits: Tensor, local: Tensor, temperature: float, real: int, lowest: float) -> Tensor:
    """core.entropy.moments as [4,N]; local [N]: the token's row on this rank, -1 where none."""
    assert logits.stride(1) == 1
    out = logits.new_empty(4, len(logits), dtype=torch.float32)
    if len(logits):
        _moments[(len(logits),)](
            logits, local, out, *logits.shape, real, logits.stride(0), 1 / temperature,
            lowest, BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return out


def gradient(
    logits: Tensor, local: Tensor, temperature: float, real: int, lowest: float, *rows: Tensor
) -> Tensor:
    """As core.entropy.logits_gradient; rows [N]: log Z, H, the gradients of log p and of H."""
    assert logits.stride(1) == 1
    grad = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    n, width = logits.shape
    if n:
        _gradient[(n, triton.cdiv(width, BLOCK))](
            logits, local, grad, *(x.contiguous() for x in rows),
            width, real, logits.stride(0), 1 / temperature, lowest, BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return grad


@triton.jit
def _moments(
    logits, local, out, n, width, real, stride, inverse_temperature,
    LOWEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    top = tl.full((), LOWEST, tl.float32)
    total = tl.zeros((), tl.float32)
    weighted = tl.zeros((), tl.float32)
    for start in range(0, real, BLOCK):
        column = start + columns
        # the load is masked by the width, not by `real`, which is seldom a multiple of a vector
        x = tl.load(logits + row * stride + column, mask=column < width, other=0.0)
        x = tl.where(column < real, x.to(tl.float32) * inverse_temperature, -float("inf"))
        new_top = tl.maximum(top, tl.max(x, 0))
        lower = tl.maximum(x - new_top, LOWEST, propagate_nan=tl.PropagateNan.ALL)
        p = tl.exp(lower)
        scale = tl.exp(top - new_top)
        weighted = (weighted + (top - new_top) * total) * scale + tl.sum(p * lower, 0)
        total = total * scale + tl.sum(p, 0)
        top = new_top
    token = tl.load(local + row)
    chosen = tl.load(logits + row * stride + token, mask=token >= 0, other=-float("inf"))
    tl.store(out + row, top)
    tl.store(out + n + row, total)
    tl.store(out + 2 * n + row, weighted)
    tl.store(out + 3 * n + row, chosen.to(tl.float32) * inverse_temperature)


@triton.jit
def _gradient(
    logits, local, grad, log_z, entropy, grad_logprobs, grad_entropy,
    width, real, stride, inverse_temperature,
    LOWEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * stride + columns, mask=columns < width, other=0.0)
    log_p = x.to(tl.float32) * inverse_temperature - tl.load(log_z + row)
    log_p = tl.maximum(log_p, LOWEST, propagate_nan=tl.PropagateNan.ALL)
    d_logprob = tl.load(grad_logprobs + row)
    d_entropy = tl.load(grad_entropy + row)
    slope = d_logprob + d_entropy * (log_p + tl.load(entropy + row))
    value = tl.where(columns == tl.load(local + row), d_logprob, 0.0) - tl.exp(log_p) * slope
    value = tl.where(columns < real, value * inverse_temperature, 0.0)
    tl.store(grad + row * width + columns, value, mask=columns < width)
