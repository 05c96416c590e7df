"""Transformer Engine's quantisers on this GPU against `low_precision.RECIPES`, bit for bit."""

import sys

import numpy as np
import torch
from piece import ROOT, Piece
from torch import Tensor

from nemo_algos.engines.local import low_precision

sys.path.append(str(ROOT / "tests/golden"))
import te_numbers

BLOCKWISE = low_precision.RECIPES["fp8_blockwise"]
WHOLE = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def compare(piece: Piece) -> None:
    """Counts of numbers that differ, by kind of block and scale; OUT/te_numbers.npz.

    The file, put into tests/golden, makes test_low_precision.py hold our numbers to this
    GPU's kernels.
    """
    for what, x in {**te_numbers.inputs(), "wide": _wide()}.items():
        for rows in te_numbers.KINDS.values():
            ours = BLOCKWISE.activation if rows == 1 else BLOCKWISE.weight
            kind = f"{rows}x128, {what}"
            got = te_numbers.by_kernels(x, rows, True)
            piece.figures[f"power of two, {kind}: differ"] = differ(got, ours(x))
            got = te_numbers.by_kernels(x, rows, False)
            wanted = low_precision.e4m3(128, x, rows == 128)
            piece.figures[f"float32 scales, {kind}: differ"] = differ(got, wanted)
        for name, dtype in WHOLE.items():
            wanted = low_precision.whole(dtype)(x)
            piece.figures[f"whole {name}, {what}: differ"] = differ(whole(x, dtype), wanted)
    found = te_numbers.numbers(torch.cuda.get_device_name(), te_numbers.by_kernels)
    np.savez_compressed(piece.out / "te_numbers.npz", **found)


def differ(got: Tensor, wanted: Tensor) -> list[float]:
    """How many numbers, of how many, and the largest relative difference."""
    other = got != wanted
    relative = (got - wanted).abs() / wanted.abs().clamp(min=1e-30)
    return [int(other.sum()), other.numel(), float(relative.where(other, 0.0).max())]


def whole(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in a dtype with one scale of the whole tensor, rounded on this GPU."""
    import transformer_engine_torch as tex  # pyright: ignore[reportMissingImports]
    from transformer_engine.pytorch.tensor.float8_tensor import (  # pyright: ignore
        Float8CurrentScalingQuantizer,
    )

    kind = tex.DType.kFloat8E4M3 if dtype == torch.float8_e4m3fn else tex.DType.kFloat8E5M2
    device = torch.device("cuda")
    found = Float8CurrentScalingQuantizer(fp8_dtype=kind, device=device)(x.cuda())
    return (found._data.view(dtype).float() * found._scale_inv.float()).cpu()


def _wide() -> Tensor:
    rng = torch.Generator().manual_seed(1)
    sizes = torch.logspace(-6, 4, 512)[:, None]
    return (torch.randn(512, 1024, generator=rng) * sizes).bfloat16().float()
