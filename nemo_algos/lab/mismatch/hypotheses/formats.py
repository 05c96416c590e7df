"""Number formats: of weights, of their inputs, of the cache, of the output head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nemo_algos.engines.local.fp8 import E4M3_MAX, e4m3
from nemo_algos.lab.mismatch.hypotheses.forward import (
    Candidates,
    Case,
    Hypothesis,
    each,
    of_model,
)
from nemo_algos.lab.mismatch.network import Change, Network, edit_parameters


def _in_layers(name: str) -> bool:
    return ".layers." in name and "norm" not in name and name.endswith("weight")


def tensorwise(w: Tensor) -> Tensor:
    """E4M3 with one scale [M,N]."""
    scale = w.abs().max().clamp(min=1e-30) / E4M3_MAX
    return (w / scale).to(torch.float8_e4m3fn).to(w.dtype) * scale


def rowwise(w: Tensor) -> Tensor:
    """E4M3 with a scale for each row [M,N]."""
    scale = w.abs().amax(-1, keepdim=True).clamp(min=1e-30) / E4M3_MAX
    return (w / scale).to(torch.float8_e4m3fn).to(w.dtype) * scale


def integers(bits: int, group: int | None = None) -> Callable[[Tensor], Tensor]:
    """Symmetric whole numbers with a scale for each row, or for each group of a row."""
    most = 2 ** (bits - 1) - 1

    def rounded(w: Tensor) -> Tensor:
        parts = w.unflatten(-1, (-1, group)) if group and w.shape[-1] % group == 0 else w
        scale = parts.abs().amax(-1, keepdim=True).clamp(min=1e-30) / most
        return ((parts / scale).round() * scale).reshape(w.shape)

    return rounded


WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "fp8 per tensor": tensorwise,
    "fp8 per channel": rowwise,
    "fp8 blocks of 128": lambda w: e4m3(128, w, True),
    "int8 per channel": integers(8),
    "int4 groups of 32": integers(4, 32),
    "int4 groups of 64": integers(4, 64),
    "int4 groups of 128": integers(4, 128),
}
INPUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "fp8 per tensor": tensorwise,
    "fp8 per channel": rowwise,
    "fp8 blocks of 128": lambda x: e4m3(128, x, False),
}


def _quantized(which: Callable[[str], bool], rounded: Callable[[Tensor], Tensor]) -> Change:
    def edit(name: str, weight: Tensor) -> Tensor:
        return rounded(weight.float()).to(weight.dtype) if weight.ndim == 2 else weight

    return of_model(lambda n: edit_parameters(n, which, edit))


def _quantized_inputs(name: str) -> Change:
    rounded = INPUTS[name]

    def before(module: nn.Module, args: tuple[Tensor]) -> Tensor:
        x = args[0]
        return rounded(x.float().flatten(0, -2)).to(x.dtype).view(x.shape)

    @contextmanager
    def both(network: Network) -> Iterator[None]:
        linear = [
            m
            for k, m in network.model.named_modules()
            if isinstance(m, nn.Linear) and _in_layers(k + ".weight")
        ]
        with ExitStack() as stack:
            for module in linear:
                stack.callback(module.register_forward_pre_hook(before).remove)
            yield

    return of_model(both)


def quantized_weights(case: Case) -> Candidates:
    """The layers' weights, or weights and inputs, in a coarser format."""
    trials = [({"format": k}, _quantized(_in_layers, f)) for k, f in WEIGHTS.items()]
    yield from each(trials)
    for name in INPUTS:

        @contextmanager
        def both(network: Network, shown: Any, some: Any, name: str = name) -> Iterator[Any]:
            with (
                _quantized(_in_layers, WEIGHTS[name])(network, shown, some),
                _quantized_inputs(name)(network, shown, some),
            ):
                yield shown

        yield {"format": f"{name}, inputs too"}, both


def quantized_head(case: Case) -> Candidates:
    """The output head, which recipes leave out, is quantized, or its logits are rounded."""
    head = case.network.model.lm_head

    def rounded(change: Callable[[Tensor], Tensor]) -> Change:
        @contextmanager
        def edit(network: Network) -> Iterator[None]:
            before = head.weight
            head.weight = nn.Parameter(change(before.float()).to(before.dtype), requires_grad=False)
            try:
                yield
            finally:
                head.weight = before

        return of_model(edit)

    yield from each([({"format": k}, rounded(change)) for k, change in WEIGHTS.items()])


def quantized_cache(case: Case) -> Candidates:
    """Keys and values in FP8, as they are or scaled to their largest."""

    def cached(rounded: Callable[[Tensor], Tensor]) -> Change:
        def after(module: nn.Module, args: Any, out: Tensor) -> Tensor:
            return rounded(out.float()).to(out.dtype)

        @contextmanager
        def edit(network: Network) -> Iterator[None]:
            with ExitStack() as stack:
                for name, module in network.model.named_modules():
                    if name.endswith(("k_proj", "v_proj")):
                        stack.callback(module.register_forward_hook(after).remove)
                yield

        return of_model(edit)

    def unscaled(x: Tensor) -> Tensor:
        return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(x.dtype)

    yield {"format": "fp8"}, cached(unscaled)
    yield {"format": "fp8", "scale": "per tensor"}, cached(tensorwise)


def precision(case: Case) -> Candidates:
    """Everything in a coarser dtype."""
    yield {"dtype": "bfloat16"}, in_dtype(torch.bfloat16)
    yield {"dtype": "bfloat16 logits"}, of_model(_rounded_logits)


@contextmanager
def _rounded_logits(network: Network) -> Iterator[None]:
    head = network.model.lm_head
    hook = head.register_forward_hook(lambda _, __, out: out.bfloat16().to(out.dtype))
    try:
        yield
    finally:
        hook.remove()


def in_dtype(dtype: torch.dtype) -> Change:
    """Weights and activations in this dtype."""
    return of_model(lambda n: edit_parameters(n, lambda _: True, lambda _, p: p.to(dtype)))


HYPOTHESES = [
    Hypothesis("precision", precision),
    Hypothesis("quantized_weights", quantized_weights),
    Hypothesis("quantized_cache", quantized_cache),
    Hypothesis("quantized_head", quantized_head),
]
