"""Writes te_numbers.npz: how Transformer Engine itself rounds to E4M3 in blocks.

On a GPU with Transformer Engine: `python te_numbers.py` asks its quantisers. Without one:
`python te_numbers.py CHECKOUT` asks the reference in Transformer Engine's own tests
(tests/pytorch/references), which its kernels are held to bit for bit. `source` says which it was.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

KINDS = {"rows": 1, "squares": 128}  # rows of a block; a block has 128 columns


def inputs() -> dict[str, torch.Tensor]:
    """[M,K] float32 by name: plain numbers; rows of very different sizes, zeros, outliers."""
    rng = torch.Generator().manual_seed(0)
    plain = torch.randn(130, 200, generator=rng)
    awkward = torch.randn(130, 200, generator=rng) * torch.logspace(-6, 4, 130)[:, None]
    awkward[:12, :128] = 0
    awkward[12, 3] = 448.0
    awkward[13, 3] = 448.0 * 1.03125
    awkward[14, :128] = 1e-30
    awkward[15, :128] = 1e-40
    return {"plain": plain, "awkward": awkward.bfloat16().float()}


def by_reference(checkout: str, x: torch.Tensor, rows: int, pow2: bool) -> torch.Tensor:
    """[M,K] float32, rounded."""
    sys.path.insert(0, str(Path(checkout) / "tests" / "pytorch"))
    from references.blockwise_quantizer_reference import BlockwiseQuantizerReference as Reference

    options = {"return_transpose": False, "pow_2_scales": pow2, "eps": 0.0}
    vectors, squares = Reference._quantize_vector_tiling, Reference._quantize_square_block_tiling
    tiling = vectors if rows == 1 else squares
    found = tiling(x, torch.float8_e4m3fn, tile_len=128, **options)
    return dequantised(found.data.float(), found.scale, rows)


def by_kernels(x: torch.Tensor, rows: int, pow2: bool) -> torch.Tensor:
    """[M,K] float32, rounded on this GPU."""
    import transformer_engine_torch as tex
    from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer

    quantizer = Float8BlockQuantizer(
        tex.DType.kFloat8E4M3,
        rowwise=True,
        columnwise=False,
        force_pow_2_scales=pow2,
        block_scaling_dim=1 if rows == 1 else 2,
    )
    found = quantizer(x.cuda())
    scale = found._rowwise_scale_inv.cpu()
    scale = scale[:, : len(x)].T if rows == 1 else scale[:, : -(-x.shape[1] // 128)]
    return dequantised(found._rowwise_data.view(torch.float8_e4m3fn).float().cpu(), scale, rows)


def dequantised(data: torch.Tensor, scale: torch.Tensor, rows: int) -> torch.Tensor:
    """data [M,K] times the scale of its block."""
    of_rows = scale.repeat_interleave(rows, 0)[: data.shape[0]]
    return data * of_rows.repeat_interleave(128, 1)[:, : data.shape[1]]


def numbers(source: str, rounded: Callable[[torch.Tensor, int, bool], torch.Tensor]) -> dict:
    """What the file holds: the inputs, and each of them rounded in blocks of every kind."""
    found = {"source": np.array(source)}
    for name, x in inputs().items():
        found[name] = x.numpy()
        for kind, rows in KINDS.items():
            for pow2 in (False, True):
                key = f"{name}/{kind}/{'power_of_two' if pow2 else 'float32'}"
                found[key] = rounded(x, rows, pow2).numpy()
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        found = numbers("reference", partial(by_reference, sys.argv[1]))
    else:
        found = numbers(torch.cuda.get_device_name(), by_kernels)
    np.savez_compressed(Path(__file__).with_suffix(".npz"), **found)
