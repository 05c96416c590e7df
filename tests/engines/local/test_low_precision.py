"""Training in FP8 and FP4, emulated: the number formats against tables, the products by hand."""

import json
import math
from bisect import bisect_left
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import short_runs
import small_llama
import torch
from short_runs import short_warm_start, train  # noqa: F401
from torch import nn

from nemo_algos.engines.local import low_precision
from nemo_algos.engines.local.hardware import describe, device_of, precision_of, threads_of
from nemo_algos.engines.local.hf import HFPolicy
from nemo_algos.engines.local.low_precision import RECIPES, e4m3, emulate, exact
from nemo_algos.engines.local.prompt_sharing import micro_batches
from nemo_algos.engines.local.schema import TINY

FP4 = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]  # E2M1's magnitudes, by their codes
GENERATOR = torch.Generator().manual_seed(0)


def nearest(value, table):
    """Round to nearest, ties to the even code, of the two that lie around it in a sorted table."""
    above = min(bisect_left(table, abs(value)), len(table) - 1)
    around = range(max(above - 1, 0), above + 1)
    best = min(around, key=lambda i: (abs(table[i] - abs(value)), i % 2))
    return math.copysign(float(table[best]), value)


def e4m3_table():
    """The 127 magnitudes: 3 bits of mantissa, exponents -6 to 8, 480 is NaN."""
    subnormal = [Fraction(m, 8) / 64 for m in range(8)]
    normal = [(1 + Fraction(m, 8)) * Fraction(2) ** (e - 7) for e in range(1, 16) for m in range(8)]
    return (subnormal + normal)[:-1]


def by_table(x, columns, rows, scale, table):
    """x in blocks of rows x columns; scale(amax) is what a block is divided by. In Fractions."""
    out = torch.empty_like(x, dtype=torch.float64)
    for i in range(0, x.shape[0], rows):
        for j in range(0, x.shape[1], columns):
            block = x[i : i + rows, j : j + columns].double()
            s = scale(Fraction(float(block.abs().max())))
            values = [
                [nearest(Fraction(v) / s, table) * float(s) for v in r] for r in block.tolist()
            ]
            out[i : i + rows, j : j + columns] = torch.tensor(values, dtype=torch.float64)
    return out


def power(largest):
    """amax -> the power of two by which a block is divided, so that its largest stays in range."""

    def scale(amax):
        if not amax:
            return Fraction(1)
        exponent = math.floor(math.log2(largest / amax))
        assert Fraction(2) ** exponent * amax <= largest < Fraction(2) ** (exponent + 1) * amax
        return Fraction(2) ** -exponent

    return scale


def example(rows, columns):
    x = torch.randn(rows, columns, generator=GENERATOR)
    x[:, ::7] *= 40  # blocks of several sizes
    x[0, :3], x[-1] = 0, 0
    return x


@pytest.mark.parametrize(
    ("recipe", "part", "rows", "columns"),
    [
        ("fp8_blockwise", "activation", 1, 128),
        ("fp8_blockwise", "weight", 128, 128),
        ("fp8_blockwise", "gradient", 1, 128),
        *(("mxfp8", part, 1, 32) for part in ("activation", "weight", "gradient")),
    ],
)
def test_blocks_with_scales_that_are_powers_of_two(recipe, part, rows, columns):
    """448 / amax rounded down (blockwise), amax / 448 rounded up (MX): the same power of two."""
    x = example(130, 150)
    got = getattr(RECIPES[recipe], part)(x)
    want = by_table(x, columns, rows, power(Fraction(448)), e4m3_table())
    assert torch.equal(got.double(), want)


@pytest.mark.parametrize("recipe", ["fp8_blockwise", "mxfp8"])
def test_a_block_whose_largest_is_448_is_not_scaled(recipe):
    """So that the smallest number of E4M3, 2^-9, stays beside it."""
    x = torch.tensor([[448.0, 2.0**-9]])
    assert torch.equal(RECIPES[recipe].activation(x), x)
    assert torch.equal(RECIPES[recipe].activation(8 * x), 8 * x)


def test_scales_of_mx_are_e8m0():
    for amax in (1.0, 448.0, 449.0, 3e-39, 1e38):
        x = torch.full((1, 32), amax)
        exponent = max(math.ceil(math.log2(amax / 448) - 1e-12), -127)
        scale = 2.0**exponent
        assert torch.tensor(scale).to(torch.float8_e8m0fnu).float() == scale
        assert RECIPES["mxfp8"].activation(x)[0, 0] == pytest.approx(amax, rel=2**-4, abs=scale)


@pytest.mark.parametrize("part", ["activation", "weight", "gradient"])
def test_one_scale_of_a_tensor(part):
    """Current scaling: gradients in E5M2, whose largest is 57344, all else in E4M3."""
    x = example(5, 9)
    dtype, largest = (
        (torch.float8_e5m2, 57344.0) if part == "gradient" else (torch.float8_e4m3fn, 448.0)
    )
    scale = torch.tensor(largest) / x.abs().max()
    want = (x * scale).clamp(-largest, largest).to(dtype).float() * (1 / scale)
    assert torch.equal(getattr(RECIPES["fp8_current"], part)(x), want)
    flat = torch.zeros(2, 3)
    assert torch.equal(getattr(RECIPES["fp8_current"], part)(flat), flat)


@pytest.mark.parametrize(("part", "rows"), [("activation", 1), ("weight", 16), ("gradient", 1)])
def test_the_two_levels_of_nvfp4(part, rows):
    """A block's scale is E4M3, of amax / 6 in units of the tensor's amax / (6 x 448)."""
    x = example(20, 40)
    got = getattr(RECIPES["nvfp4"], part)(x)
    unit = x.abs().max().double() / (6 * 448)
    for i in range(0, 20, rows):
        for j in range(0, 40, 16):
            block = x[i : i + rows, j : j + 16].double()
            level = (block.abs().max() / 6 / unit).float().to(torch.float8_e4m3fn).double()
            seen = got[i : i + rows, j : j + 16].double()
            if level == 0:
                assert not seen.any()
                continue
            codes = seen / (level * unit)
            steps = torch.tensor([float(v) for v in FP4], dtype=torch.float64)
            assert ((codes.abs()[..., None] - steps).abs().amin(-1) < 1e-5).all()
            wanted = block / (level * unit)  # none is nearer than that which was taken
            distance = (wanted.abs().clamp(max=6)[..., None] - steps).abs().amin(-1)
            assert ((wanted.clamp(-6, 6) - codes).abs() - distance < 1e-5).all()


def test_ties_of_fp4_go_to_the_even_code():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0])
    assert low_precision.e2m1(ties).tolist() == [0, 1, 1, 2, 2, 4, 4, 6, 6]
    assert low_precision.e2m1(-ties).tolist() == [-0.0, -1, -1, -2, -2, -4, -4, -6, -6]


def layer(recipe, k=40, n=24):
    linear = nn.Linear(k, n)
    emulate(linear, RECIPES[recipe])
    return linear


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_three_products(recipe):
    """Each factor is rounded along the dimension that its product sums over."""
    q, linear = RECIPES[recipe], layer(recipe)
    # rows of very different sizes, so that a block along them is rounded otherwise than one across
    linear.weight.data *= 1.7 ** torch.arange(-12.0, 12.0)[:, None]
    x = torch.randn(3, 7, 40, generator=GENERATOR, requires_grad=True)
    dy = torch.randn(3, 7, 24, generator=GENERATOR)
    y = linear(x)
    y.backward(dy)
    rows, grads, w = x.detach().reshape(21, 40), dy.reshape(21, 24), linear.weight.detach()
    want = q.activation(rows) @ q.weight(w).T + linear.bias.detach()
    assert torch.equal(y.detach().reshape(21, 24), want)
    assert x.grad is not None and linear.weight.grad is not None
    assert linear.bias.grad is not None
    dx = q.gradient(grads) @ q.weight(w.T).T
    assert torch.equal(x.grad.reshape(21, 40), dx)
    dw = q.gradient(grads.T) @ q.activation(rows.T).T
    assert torch.equal(linear.weight.grad, dw)
    assert torch.allclose(linear.bias.grad, grads.sum(0), atol=1e-5)
    error = (want - (rows @ w.T + linear.bias.detach())).norm() / want.norm()
    assert 0.005 < error < (0.25 if recipe == "nvfp4" else 0.06)


def test_head_and_routers_stay_exact_and_all_can_again():
    model = nn.ModuleDict({name: nn.Linear(8, 8) for name in ("proj", "router", "head")})
    emulate(model, RECIPES["mxfp8"], [model["head"]])
    assert [isinstance(m, low_precision.Emulated) for m in model.values()] == [True, False, False]
    exact(model)
    assert all(type(m) is nn.Linear for m in model.values())


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_trains_in_it_against_a_sampler_in_float32(tmp_path, recipe):
    """Old log-probs are the trainer's, so ratios begin at 1; the sampler's are others."""
    train(tmp_path / "run", f"policy.precision={recipe}", "grpo.max_num_steps=2")
    rows = [json.loads(r) for r in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [r for r in rows if "mismatch/mean" in r]
    assert len(steps) == 2 and all(math.isfinite(r["grad_norm"]) for r in steps)
    assert all(1e-4 < r["mismatch/mean"] < (0.6 if recipe == "nvfp4" else 0.1) for r in steps)


def test_a_resumed_run_is_the_same(tmp_path):
    asked = ("policy.precision=mxfp8", "checkpointing.save_period=1", "grpo.val_at_end=false")
    train(tmp_path / "whole", *asked, "grpo.max_num_steps=3")
    train(tmp_path / "parts", *asked, "grpo.max_num_steps=2")
    train(tmp_path / "parts", *asked, "grpo.max_num_steps=3")
    mine, other = (short_runs.weights(tmp_path / name) for name in ("whole", "parts"))
    assert all(torch.equal(other[name], value) for name, value in mine.items())


def test_a_model_of_transformers(tmp_path):
    """The output layer stays exact; old log-probs are the training forward's."""
    folder = small_llama.save(tmp_path)
    policy = HFPolicy(small_llama.section(folder, precision="fp8_current"), torch.device("cpu"))
    kinds = {n.rpartition(".")[2]: type(m) for n, m in policy.model.named_modules()}
    assert kinds["q_proj"] is kinds["down_proj"] is low_precision.Emulated
    assert kinds["lm_head"] is nn.Linear
    drawn = policy.generate([[7, 20, 9], [33]], 4, torch.Generator().manual_seed(0))
    every = micro_batches(drawn, torch.arange(8), policy.config, policy.tree_width(drawn))
    for rows in every:
        assert torch.equal(policy.logprobs(drawn, rows), drawn.logprobs[rows])
    assert not torch.equal(drawn.gen_logprobs, drawn.logprobs)


@pytest.fixture
def machine(monkeypatch):
    """A machine without a GPU and without units for bfloat16; set(name) changes that."""

    def set_(*has):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in has)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: "cuda bf16" in has)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in has)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: "avx512" in has)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: "amx" in has)

    set_()
    return set_


AUTO = {"precision": "auto", "device": "auto"}


@pytest.mark.parametrize(
    ("has", "device", "precision"),
    [
        ((), "cpu", "float32"),
        (("avx512",), "cpu", "bfloat16"),
        (("amx",), "cpu", "bfloat16"),
        (("cuda", "amx"), "cuda", "float32"),
        (("cuda", "cuda bf16"), "cuda", "bfloat16"),
        (("mps", "amx"), "mps", "float32"),
    ],
)
def test_auto_takes_what_is_fast(machine, has, device, precision):
    machine(*has)
    policy = small_llama.section("any", **AUTO)
    assert (device_of(policy).type, precision_of(policy)) == (device, precision)
    named = small_llama.section("any", device="cpu", precision="float32")
    assert (device_of(named).type, precision_of(named)) == ("cpu", "float32")
    assert device_of(small_llama.section(TINY, **AUTO)).type == "cpu"


def test_a_device_that_is_not_there(machine):
    with pytest.raises(ValueError, match=r"cuda .*cpu"):
        device_of(small_llama.section("any", device="cuda"))
    with pytest.raises(ValueError, match=r"policy\.taught\.device: cuda .*cpu"):
        device_of(small_llama.section(TINY, device="cpu", taught={"device": "cuda"}))


def test_threads_and_the_line_that_names_it_all(machine, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    assert [threads_of(small_llama.section(name)) for name in ("any", TINY)] == [6, 1]
    assert threads_of(small_llama.section(TINY, threads=3)) == 3
    assert describe(small_llama.section("any", **AUTO)) == "cpu (6 threads), float32"
    machine("cuda", "cuda bf16")
    assert describe(small_llama.section("any", **AUTO)) == "cuda (Some GPU), bfloat16"


def test_the_countdown_models_are_said_to_compute_as_they_do(machine):
    machine("avx512")
    assert describe(small_llama.section(TINY, **AUTO)) == "cpu (1 thread), float32"


NUMBERS = np.load(Path(__file__).parents[2] / "golden" / "te_numbers.npz")
BLOCKWISE = RECIPES["fp8_blockwise"]
OURS = {
    "rows/float32": lambda x: e4m3(128, x, False),
    "squares/float32": lambda x: e4m3(128, x, True),
    "rows/power_of_two": BLOCKWISE.activation,
    "squares/power_of_two": BLOCKWISE.weight,
}


@pytest.mark.parametrize("name", ["plain", "awkward"])
@pytest.mark.parametrize("kind", OURS)
def test_every_number_is_transformer_engine_s(kind, name):
    got = OURS[kind](torch.from_numpy(NUMBERS[name]))
    assert torch.equal(got, torch.from_numpy(NUMBERS[f"{name}/{kind}"]))
