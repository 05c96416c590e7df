"""A stack of linear layers in e4m3 blocks against bf16.

Hopper's recipe: activations in blocks of 1 x 128, weights in 128 x 128.

    uv run benchmarks/fp8_gemm.py --device cuda     mismatch and speed; needs Hopper
    uv run benchmarks/fp8_gemm.py --tokens 256 --hidden 512 --inner 1024     CPU: the mismatch, by
    products of the dequantised operands

M tokens, K and N features in and out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

BLOCK, E4M3_MAX = 128, 448.0
Quantised = tuple[Tensor, Tensor]


def quantised(x: Tensor, rows: int) -> Quantised:
    """x [M,K] as e4m3 in blocks of rows x 128, with the scales [M/rows,K/128] to multiply by."""
    blocks = x.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, rows)).float()
    scale = blocks.abs().amax((1, 3), keepdim=True).clamp(min=1e-30) / E4M3_MAX
    return (blocks / scale).to(torch.float8_e4m3fn).view(x.shape), scale[:, 0, :, 0]


def dequantised(x: Tensor, scale: Tensor) -> Tensor:
    rows = len(x) // len(scale)
    return x.float() * scale.repeat_interleave(rows, 0).repeat_interleave(BLOCK, 1)


def linear(x: Tensor, weight: Quantised) -> Tensor:
    """x [M,K] bf16 times a quantised weight [N,K] -> bf16 [M,N]; M, K / 128 multiples of 4."""
    inputs, scale = quantised(x, 1)
    if not x.is_cuda:
        return (dequantised(inputs, scale) @ dequantised(*weight).T).bfloat16()
    # F.scaled_mm, the public name, breaks torch.compile's graph in torch 2.11
    return torch._scaled_mm(
        inputs,
        weight[0].t(),
        scale.t().contiguous().t(),  # cuBLAS reads the scales of 1 x 128 blocks token by token
        weight[1].t(),
        out_dtype=torch.bfloat16,
    )


def stack(x: Tensor, weights: list, product: Callable[..., Tensor]) -> Tensor:
    """Residual MLP blocks: x + W_down silu(W_up norm(x))."""
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        x = x + product(F.silu(product(F.rms_norm(x, x.shape[-1:]), up)), down)
    return x


def milliseconds(function: Callable[[], object], device: str, times: int = 10) -> float:
    """Median of wall time, after two calls to warm up."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds = []
    for _ in range(times + 2):
        wait()
        start = time.perf_counter()
        function()
        wait()
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds[2:])


@torch.no_grad()
def main(
    device: str = "cpu", tokens: int = 8192, hidden: int = 4096, inner: int = 14336, layers: int = 4
) -> None:
    """Prints the relative error to float32 of bf16 and of e4m3, and their times."""
    torch.manual_seed(0)
    shapes = [(inner, hidden), (hidden, inner)] * layers
    exact = [torch.randn(n, k, device=device) / k**0.5 for n, k in shapes]
    x = torch.randn(tokens, hidden, device=device)
    want = stack(x, exact, F.linear)
    weights = {
        "bf16": ([w.bfloat16() for w in exact], F.linear),
        "e4m3": ([quantised(w, BLOCK) for w in exact], linear),
    }
    for name, (parts, product) in weights.items():
        run = torch.compile(stack) if device == "cuda" else stack
        call = lambda p=parts, f=product, r=run: r(x.bfloat16(), p, f)  # noqa: E731
        error = (call().float() - want).norm() / want.norm()
        print(f"{name}   {milliseconds(call, device):9.2f} ms   relative error {float(error):.2e}")


if __name__ == "__main__":
    typer.run(main)
