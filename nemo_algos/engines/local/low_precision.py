"""`policy.precision: fp8_blockwise, ...`: Transformer Engine's recipes in linear layers, emulated.

    y  = q(x) q(w)^T       x [M,K] activations, w [N,K] weights, dy [M,N] gradients
    dx = q(dy) q(w)        q rounds along the dimension that the product sums over, so that each
    dw = q(dy)^T q(x)      tensor is rounded from its own numbers twice; sums are in float32

Weights and optimizer keep float32, as master weights. Not emulated: the order of the sums, fused
layers' rounding of what lies between, NVFP4's random Hadamard transform and stochastic rounding.
"""

import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

E4M3_MAX = 448.0


def in_blocks(x: Tensor, rows: int, columns: int, rounded: Callable[..., Tensor]) -> Tensor:
    """x [M,N] in blocks, of which `rounded` is given numbers and largest magnitude."""
    m, n = x.shape
    padded = F.pad(x, (0, -n % columns, 0, -m % rows))
    blocks = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
    largest = blocks.abs().amax((1, 3), keepdim=True)
    return rounded(blocks, largest).flatten(2).flatten(0, 1)[:m, :n]


def e4m3(size: int, x: Tensor, square: bool) -> Tensor:
    """x [M,N] in E4M3, in blocks of size x size or 1 x size, each with its float32 scale."""

    def rounded(blocks: Tensor, largest: Tensor) -> Tensor:
        dtype = torch.float8_e4m3fn
        return cast(blocks, float32_scale(largest, dtype), dtype)

    return in_blocks(x, size if square else 1, size, rounded)


Rounding = Callable[[Tensor], Tensor]  # of a matrix whose last dimension the product sums over
FP4_MAX = 6.0
EXPONENTS = (-127, 127)  # of E8M0
ROUTER = re.compile(r"(^|\.)(router|gate)(\.|$)")


class Recipe(NamedTuple):
    """How each factor of the three products is rounded."""

    activation: Rounding
    weight: Rounding
    gradient: Rounding


def cast(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x scale in a dtype, and back; beyond its range the largest number."""
    largest = torch.finfo(dtype).max
    return (x * scale).clamp(-largest, largest).to(dtype).to(x.dtype) * (1 / scale)


def float32_scale(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """What takes `largest` to the dtype's largest number, rounded as Transformer Engine does.

    It multiplies by this scale and by its reciprocal: dividing by amax / 448 differs in the last
    bit of half of the numbers. Of 0: 1.
    """
    # a number over a tensor would be rounded twice: as its reciprocal, and as a product
    scale = torch.full_like(largest, torch.finfo(dtype).max) / largest
    return scale.clamp(max=torch.finfo(largest.dtype).max).where(largest > 0, 1.0)


def power_of_two(largest: Tensor) -> Tensor:
    """The largest power of two that keeps a block's largest magnitude within E4M3; of 0: 1."""
    mantissa, exponent = torch.frexp(largest / E4M3_MAX)
    up = (exponent - (mantissa == 0.5).int()).clamp(*EXPONENTS)
    return torch.ldexp(torch.ones_like(largest), -up).where(largest > 0, 1.0)


def e4m3_blocks(rows: int, columns: int) -> Rounding:
    """E4M3 in blocks, whose scales are powers of two."""
    to = torch.float8_e4m3fn
    return lambda x: in_blocks(x, rows, columns, lambda b, most: cast(b, power_of_two(most), to))


def whole(dtype: torch.dtype) -> Rounding:
    """One float32 scale, of the tensor's largest magnitude as it is now."""

    def rounded(x: Tensor) -> Tensor:
        return cast(x, float32_scale(x.abs().amax(), dtype), dtype)

    return rounded


def e2m1(x: Tensor) -> Tensor:
    """The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with x's sign; a tie goes to the even code."""
    size = x.abs().clamp(max=FP4_MAX)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.copysign((size / step).round() * step, x)


def nvfp4_blocks(rows: int) -> Rounding:
    """E2M1 in blocks of 16 whose scales are E4M3, in units of one float32 scale of the tensor."""

    def rounded(x: Tensor) -> Tensor:
        largest = x.abs().amax()
        unit = (largest / (FP4_MAX * E4M3_MAX)).where(largest > 0, 1.0)

        def block(values: Tensor, most: Tensor) -> Tensor:
            level = (most / FP4_MAX / unit).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn).to(x.dtype)
            size = level * unit
            return (e2m1(values / size.where(level > 0, 1.0)) * size).where(level > 0, 0.0)

        return in_blocks(x, rows, 16, block)

    return rounded


BLOCKS = e4m3_blocks(1, 128)
MX = e4m3_blocks(1, 32)
CURRENT = whole(torch.float8_e4m3fn)
RECIPES = {
    "fp8_blockwise": Recipe(BLOCKS, e4m3_blocks(128, 128), BLOCKS),
    "fp8_current": Recipe(CURRENT, CURRENT, whole(torch.float8_e5m2)),
    "mxfp8": Recipe(MX, MX, MX),
    "nvfp4": Recipe(nvfp4_blocks(1), nvfp4_blocks(16), nvfp4_blocks(1)),
}


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, recipe: Recipe) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.recipe = recipe
        return recipe.activation(x) @ recipe.weight(weight).T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (x, weight), (dy,), q = ctx.saved_tensors, grads, ctx.recipe
        dx = q.gradient(dy) @ q.weight(weight.T).T
        return dx, q.gradient(dy.T) @ q.activation(x.T).T, None


class Emulated(nn.Linear):
    """A linear layer whose three products take rounded factors; x [...,K] -> [...,N]."""

    recipe: Recipe

    def forward(self, input: Tensor) -> Tensor:
        y = _Product.apply(input.flatten(0, -2), self.weight, self.recipe)
        y = y.unflatten(0, input.shape[:-1])
        return y if self.bias is None else y + self.bias


def emulate(model: nn.Module, recipe: Recipe, spared: Collection[nn.Module | None] = ()) -> None:
    """Compute the linear layers of a model by a recipe, but for routers and `spared`."""
    for name, module in model.named_modules():
        if type(module) is nn.Linear and module not in spared and not ROUTER.search(name):
            module.__class__ = Emulated
            module.recipe = recipe  # pyright: ignore[reportArgumentType]


def exact(model: nn.Module) -> None:
    """Compute all of them in their own dtype again."""
    for module in model.modules():
        if isinstance(module, Emulated):
            module.__class__ = nn.Linear  # pyright: ignore[reportAttributeAccessIssue]
