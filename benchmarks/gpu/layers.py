"""Transformer Engine's layers on this GPU: FP8 against bf16, packed attention against padded."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from piece import ROOT, Piece
from torch import Tensor, nn

sys.path.append(str(ROOT / "benchmarks"))
from fp8_gemm import distance, milliseconds

WIDTH = 4096  # a layer of Llama 8B
INNER = 14336
HEADS = 32
GROUPS = 8
ROWS = 4
TOKENS = 2048  # of a row
LENGTHS = (2048, 1500, 900, 400, 300, 220, 150, 90)  # of responses: a third of a padded batch
Context = Callable[[], AbstractContextManager[Any]]


def compare(piece: Piece) -> None:
    """A linear layer and a whole one by recipe: TFLOP/s, error, memory; attention both ways."""
    os.environ["NVTE_FP8_BLOCK_SCALING_FP32_SCALES"] = "1"  # as fp8.yaml; read at the import
    import transformer_engine.pytorch as te  # pyright: ignore[reportMissingImports]
    from transformer_engine.common import recipe  # pyright: ignore[reportMissingImports]

    recipes: dict[str, Any] = {"bf16": None, "blockwise": recipe.Float8BlockScaling()}
    recipes["tensorwise"] = recipe.Float8CurrentScaling()
    contexts: dict[str, Context] = {
        name: partial(te.fp8_autocast, enabled=chosen is not None, fp8_recipe=chosen)
        for name, chosen in recipes.items()
    }
    torch.manual_seed(0)
    own = {"params_dtype": torch.bfloat16, "bias": False}
    x = torch.randn(ROWS, TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
    of_layer(piece, "linear", te.Linear(WIDTH, INNER, **own).cuda(), x=x, contexts=contexts)
    core = partial(te.DotProductAttention, HEADS, WIDTH // HEADS, num_gqa_groups=GROUPS)
    of_attention(
        piece,
        packed=core(qkv_format="thd", attn_mask_type="padding_causal"),
        padded=core(qkv_format="bshd", attn_mask_type="causal"),
    )
    own |= {"num_gqa_groups": GROUPS, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    own |= {"normalization": "RMSNorm", "activation": "swiglu", "attn_input_format": "bshd"}
    whole = te.TransformerLayer(WIDTH, INNER, HEADS, **own).cuda()
    of_layer(piece, "whole layer", whole, x=x, contexts=contexts)


def of_layer(
    piece: Piece, name: str, layer: nn.Module, x: Tensor, contexts: Mapping[str, Context]
) -> None:
    """Figures of a layer by recipe; errors are relative to the first of them, bf16."""
    weights = list(layer.parameters())
    matrices = sum(weight.numel() for weight in weights if weight.ndim == 2)
    work = 6 * x.shape[:-1].numel() * matrices  # of linear layers, forward and backward
    dy = torch.randn_like(layer(x)) * 1e-3
    wanted: list[Tensor] = []
    for recipe, context in contexts.items():

        def once(context: Context = context) -> list[Tensor]:
            def under(x: Tensor) -> Tensor:
                with context():
                    return layer(x)

            return both_ways(under, [x], dy, weights=weights)

        got = once()
        wanted = wanted or got
        errors = apart(got, wanted)
        piece.figures |= {
            f"{name}, {recipe}: relative error of y, dx, the worst dw": [
                *errors[:2],
                max(errors[2:]),
            ],
            f"{name}, {recipe}: TFLOP/s": work / milliseconds(once, x.device.type) / 1e9,
        }
        del got
        if x.is_cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            once()
            peak = torch.cuda.max_memory_allocated() - before
            piece.figures[f"{name}, {recipe}: GB of activations and gradients"] = peak / 1e9


def of_attention(
    piece: Piece,
    packed: Callable[..., Tensor],
    padded: Callable[..., Tensor],
    lengths: Sequence[int] = LENGTHS,
) -> None:
    """Figures of the same rows as one sequence [T,H,D] and as a batch [B,S,H,D], causal."""
    device = "cpu" if piece.on_cpu else "cuda"
    places = torch.arange(max(lengths), device=device)
    real = places < torch.tensor(lengths, device=device)[:, None]  # [B,S]
    ends = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    bounds = torch.tensor(ends, dtype=torch.int32, device=device)
    words: dict[str, Any] = {"cu_seqlens_q": bounds, "cu_seqlens_kv": bounds}
    words |= {"max_seqlen_q": max(lengths), "max_seqlen_kv": max(lengths)}
    size = WIDTH // HEADS
    batch = [
        torch.randn(*real.shape, heads, size, device=device).bfloat16()
        for heads in (HEADS, GROUPS, GROUPS)
    ]
    dy = torch.randn(ends[-1], WIDTH, device=device).bfloat16()

    def by_rows() -> list[Tensor]:
        rows = [part[real] for part in batch]
        return both_ways(lambda *qkv: packed(*qkv, **words).reshape(-1, WIDTH), rows, dy)

    def by_batch() -> list[Tensor]:
        return both_ways(lambda *qkv: padded(*qkv).reshape(*real.shape, WIDTH)[real], batch, dy)

    y, *grads = by_batch()
    wanted = [y, *(grad[real] for grad in grads)]
    piece.figures |= {
        "attention, packed against padded: relative of y, dq, dk, dv": apart(by_rows(), wanted),
        "attention, packed: ms": milliseconds(by_rows, device),
        "attention, padded: ms": milliseconds(by_batch, device),
    }


def both_ways(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    dy: Tensor,
    weights: Sequence[Tensor] = (),
) -> list[Tensor]:
    """y, and the gradients of inputs and weights."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    y = function(*inputs)
    return [y.detach(), *torch.autograd.grad(y, [*inputs, *weights], dy)]


def apart(got: Iterable[Tensor], wanted: Iterable[Tensor]) -> list[float]:
    """How far each is from the other, relative."""
    return [distance(a.float(), b.float()) for a, b in zip(got, wanted, strict=True)]
