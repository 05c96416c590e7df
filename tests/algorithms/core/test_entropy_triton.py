"""The Triton kernels: equal to the torch path when interpreted, and compiled for Hopper.

The interpreter is chosen when a kernel is defined, so it has a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="torch brings Triton on Linux only")

INTERPRETED = """
import torch
from nemo_algos.algorithms.core import entropy, entropy_triton

torch.set_num_threads(1)
torch.manual_seed(0)
entropy_triton.BLOCK = 16  # several blocks a row, the last one ragged
shard = entropy.Shard(None, 0, 45)
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    wide = (3 * torch.randn(6, 60)).to(dtype)
    wide[0, 3], wide[1, :16], wide[2, 5] = -torch.inf, -torch.inf, torch.nan
    tokens = torch.tensor([3, 60, 44, 46, 0, 16])
    grads = torch.randn(2, 6)
    for logits in (wide[:, :50], wide[:, :48].contiguous()):  # rows apart, rows that vectors fit
        want = entropy.moments(logits, tokens, 0.7, shard)
        local, lowest = shard.local(tokens), entropy.LOWEST
        got = entropy.Moments(*entropy_triton.moments(logits, local, 0.7, shard.real, lowest))
        finite = [0, 1, 3, 4, 5]
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g[finite], w[finite], rtol=1e-6, atol=1e-5)
        assert got.total[2].isnan() and got.weighted[2].isnan()
        result = entropy.over_vocabulary(want, shard)
        want = entropy.logits_gradient(logits, tokens, 0.7, shard, result, *grads)
        got = entropy_triton.gradient(
            logits, local, 0.7, shard.real, lowest, result.log_z, result.entropy, *grads
        )
        assert got.dtype == dtype and (got[finite, 45:] == 0).all() and got[2, 0].isnan()
        torch.testing.assert_close(got[finite], want[finite])
print("equal")
"""

COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from nemo_algos.algorithms.core import entropy_triton

constants = {"LOWEST": -1e30, "BLOCK": entropy_triton.BLOCK}
for kernel in (entropy_triton._moments, entropy_triton._gradient):
    types = {"logits": "*bf16", "local": "*i64", "grad": "*bf16", "inverse_temperature": "fp32"}
    types |= dict.fromkeys(("n", "width", "real", "stride"), "i32")
    types |= dict.fromkeys(("out", "log_z", "entropy", "grad_logprobs", "grad_entropy"), "*fp32")
    types |= dict.fromkeys(constants, "constexpr")
    names = kernel.arg_names
    aligned = {"logits", "grad", "width", "stride"}  # as a vocabulary of a multiple of 16 is
    source = ASTSource(
        kernel,
        signature={k: types[k] for k in names},
        constexprs=constants,
        attrs={(names.index(k),): [["tt.divisibility", 16]] for k in aligned & {*names}},
    )
    target = GPUTarget("cuda", 90, 32)
    made = triton.compile(source, target=target, options={"num_warps": entropy_triton.WARPS})
    loads = [line.split()[1] for line in made.asm["ptx"].splitlines() if "ld.global" in line]
    print(len(made.asm["cubin"]) > 0, "ld.global.v4.b32" in loads)
"""


def run(script: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_kernels_equal_the_torch_path():
    assert run(INTERPRETED, TRITON_INTERPRET="1") == ["equal"]


@pytest.mark.long
def test_kernels_compile_for_hopper_and_load_16_bytes_at_a_time(tmp_path: Path):
    assert run(COMPILED, TRITON_CACHE_DIR=str(tmp_path)) == ["True"] * 4
