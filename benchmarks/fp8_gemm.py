"""A stack of linear layers in e4m3 blocks against bf16.

Hopper's recipe: activations in blocks of 1 x 128, weights in 128 x 128.

    uv run benchmarks/fp8_gemm.py --device cuda     mismatch and speed; needs Hopper
    uv run benchmarks/fp8_gemm.py --tokens 256 --hidden 512 --inner 1024     CPU: the mismatch, by
    products of the dequantised operands

`emulated` multiplies the same factors in float32: what differs is the order and width of the sums.
`fp8_blockwise` is the recipe of `policy.precision`, whose scales are powers of two.

M tokens, K and N features in and out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import timing
import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from nemo_algos.engines.local.low_precision import RECIPES

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


def emulated(x: Tensor, weight: Quantised) -> Tensor:
    """x [M,K] bf16 times a quantised weight [N,K] -> bf16 [M,N], summed in float32."""
    return (dequantised(*quantised(x, 1)) @ dequantised(*weight).T).bfloat16()


def hardware(x: Tensor, weight: Quantised) -> Tensor:
    """The same by Hopper's tensor cores; M, K / 128 multiples of 4."""
    inputs, scale = quantised(x, 1)
    # F.scaled_mm, the public name, breaks torch.compile's graph in torch 2.11
    return torch._scaled_mm(
        inputs,
        weight[0].t(),
        scale.t().contiguous().t(),  # cuBLAS reads the scales of 1 x 128 blocks token by token
        weight[1].t(),
        out_dtype=torch.bfloat16,
    )


def recipe(x: Tensor, weight: Tensor) -> Tensor:
    """The same by the embedded engine's recipe for training; weight [N,K] float32."""
    q = RECIPES["fp8_blockwise"]
    return (q.activation(x.float()) @ q.weight(weight).T).bfloat16()


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
    device: str = "cpu",
    tokens: int = 8192,
    hidden: int = 4096,
    inner: int = 14336,
    layers: int = 4,
    json: Path | None = None,
) -> None:
    """Prints the relative error to float32 of each route, and its time; a file gets them, too."""
    torch.manual_seed(0)
    shapes = [(inner, hidden), (hidden, inner)] * layers
    exact = [torch.randn(n, k, device=device) / k**0.5 for n, k in shapes]
    x = torch.randn(tokens, hidden, device=device)
    want = stack(x, exact, F.linear)
    blocks, cuda = [quantised(w, BLOCK) for w in exact], device == "cuda"
    routes = {
        "bf16": ([w.bfloat16() for w in exact], F.linear),
        "emulated": (blocks, emulated),
        "fp8_blockwise": (exact, recipe),
    } | ({"e4m3": (blocks, hardware)} if cuda else {})
    figures, results = dict[str, float](), dict[str, Tensor]()
    for name, (weights, product) in routes.items():
        run = torch.compile(stack) if cuda and name in ("bf16", "e4m3") else stack
        call = lambda p=weights, f=product, r=run: r(x.bfloat16(), p, f)  # noqa: E731
        results[name] = call().float()
        figures[f"{name}, ms"] = milliseconds(call, device)
        figures[f"{name}, relative error"] = distance(results[name], want)
    if cuda:
        figures["e4m3, difference to emulated"] = distance(results["e4m3"], results["emulated"])
    print("\n".join(f"{name:30} {value:.3g}" for name, value in figures.items()))
    timing.save(json, figures)


def distance(x: Tensor, y: Tensor) -> float:
    """Norm of the difference, relative to y's."""
    return float((x - y).norm() / y.norm())


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)
