"""Number formats: of weights, of their inputs, of the cache, of the output head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from nemo_algos.engines.local.low_precision import E4M3_MAX, e4m3
from nemo_algos.lab.mismatch.hypotheses.forward import (
    Candidates,
    Case,
    Hypothesis,
    each,
    of_model,
)
from nemo_algos.lab.mismatch.network import (
    Change,
    Network,
    edit_attributes,
    edit_outputs,
    edit_parameters,
    modules,
)

Rounded = Callable[[Tensor], Tensor]


def _in_layers(name: str) -> bool:
    return ".layers." in name and "norm" not in name and name.endswith("weight")


def _e4m3(w: Tensor, most: Tensor) -> Tensor:
    scale = most.clamp(min=1e-30) / E4M3_MAX
    return (w / scale).to(torch.float8_e4m3fn).to(w.dtype) * scale


def tensorwise(w: Tensor) -> Tensor:
    """E4M3 with one scale [M,N]."""
    return _e4m3(w, w.abs().max())


def rowwise(w: Tensor) -> Tensor:
    """E4M3 with a scale for each row [M,N]."""
    return _e4m3(w, w.abs().amax(-1, keepdim=True))


def integers(bits: int, group: int | None = None) -> Rounded:
    """Symmetric whole numbers with a scale for each row, or for each group of a row."""
    most = 2 ** (bits - 1) - 1

    def rounded(w: Tensor) -> Tensor:
        parts = w.unflatten(-1, (-1, group)) if group and w.shape[-1] % group == 0 else w
        scale = parts.abs().amax(-1, keepdim=True).clamp(min=1e-30) / most
        return ((parts / scale).round() * scale).reshape(w.shape)

    return rounded


INPUTS: dict[str, Rounded] = {
    "fp8 per tensor": tensorwise,
    "fp8 per channel": rowwise,
    "fp8 blocks of 128": lambda x: e4m3(128, x, False),
}
WEIGHTS: dict[str, Rounded] = {
    **INPUTS,
    "fp8 blocks of 128": lambda w: e4m3(128, w, True),
    "int8 per channel": integers(8),
    "int4 groups of 32": integers(4, 32),
    "int4 groups of 64": integers(4, 64),
    "int4 groups of 128": integers(4, 128),
}


def _same_dtype(rounded: Rounded) -> Rounded:
    return lambda x: rounded(x.float()).to(x.dtype)


@contextmanager
def _quantized(network: Network, weights: Rounded, inputs: Rounded | None = None) -> Iterator[None]:
    """The layers' weights, and the inputs that meet them."""

    def edit(name: str, weight: Tensor) -> Tensor:
        return _same_dtype(weights)(weight) if weight.ndim == 2 else weight

    def before(module: nn.Module, args: tuple[Tensor]) -> Tensor:
        return _same_dtype(inputs or weights)(args[0].flatten(0, -2)).view(args[0].shape)

    named = network.model.named_modules()
    linear = [m for k, m in named if isinstance(m, nn.Linear) and _in_layers(k + ".weight")]
    with ExitStack() as stack:
        stack.enter_context(edit_parameters(network, _in_layers, edit))
        for module in linear if inputs else []:
            stack.callback(module.register_forward_pre_hook(before).remove)
        yield


def quantized_weights(case: Case) -> Candidates:
    """The layers' weights, or weights and inputs, in a coarser format."""
    formats = [(name, f, None) for name, f in WEIGHTS.items()]
    formats += [(f"{name}, inputs too", WEIGHTS[name], f) for name, f in INPUTS.items()]
    yield from each(
        [({"format": k}, of_model(lambda n, f=f: _quantized(n, *f))) for k, *f in formats]
    )


def quantized_head(case: Case) -> Candidates:
    """The output head, which recipes leave out, is quantized."""

    def rounded(change: Rounded) -> Change:
        made = lambda w: nn.Parameter(_same_dtype(change)(w), requires_grad=False)  # noqa: E731
        return of_model(lambda n: edit_attributes([n.model.lm_head], "weight", made))

    yield from each([({"format": k}, rounded(change)) for k, change in WEIGHTS.items()])


def quantized_cache(case: Case) -> Candidates:
    """Keys and values in FP8, as they are or scaled to their largest."""

    def cached(rounded: Rounded) -> Change:
        after = _same_dtype(rounded)
        return of_model(
            lambda n: edit_outputs(modules(n, "k_proj", "v_proj"), lambda _, y: after(y))
        )

    def unscaled(x: Tensor) -> Tensor:
        return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(x.dtype)

    yield {"format": "fp8"}, cached(unscaled)
    yield {"format": "fp8", "scale": "per tensor"}, cached(tensorwise)


def precision(case: Case) -> Candidates:
    """Everything in bfloat16, or the logits alone."""
    rounded = lambda _, y: y.bfloat16().to(y.dtype)  # noqa: E731
    whole = lambda _, p: p.bfloat16()  # noqa: E731
    yield {"dtype": "bfloat16"}, of_model(lambda n: edit_parameters(n, lambda _: True, whole))
    yield (
        {"dtype": "bfloat16 logits"},
        of_model(lambda n: edit_outputs([n.model.lm_head], rounded)),
    )


HYPOTHESES = [
    Hypothesis("precision", precision),
    Hypothesis("quantized_weights", quantized_weights),
    Hypothesis("quantized_cache", quantized_cache),
    Hypothesis("quantized_head", quantized_head),
]
