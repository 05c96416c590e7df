"""Number formats: of weights, of their inputs, of the cache, of the output head."""

from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from nemo_algos.engines.local.low_precision import E4M3_MAX, SMALLEST_AMAX, in_blocks
from nemo_algos.lab.mismatch.hypotheses.forward import (
    Attempt,
    Case,
    named,
    of_attribute,
    of_model,
    of_outputs,
)
from nemo_algos.lab.mismatch.hypotheses.routes import routers
from nemo_algos.lab.mismatch.network import Network, edit_attributes


def rounded(x: Tensor, rows: int, columns: int, bits: int = 0) -> Tensor:
    """x [...,N] with a scale a block; 0 rows or columns: all. bits: of an integer; 0: E4M3."""
    most, flat = 2 ** (bits - 1) - 1 if bits else E4M3_MAX, x.float().flatten(0, -2)

    def coarse(blocks: Tensor, largest: Tensor) -> Tensor:
        scale = largest.clamp(min=SMALLEST_AMAX) / most
        y = blocks / scale
        return (y.round() if bits else y.to(torch.float8_e4m3fn).float()) * scale

    made = in_blocks(flat, rows or len(flat), columns or flat.shape[1], coarse)
    return made.view(x.shape).to(x.dtype)


FORMATS: dict[str, Any] = {
    "fp8 per tensor": partial(rounded, rows=0, columns=0),
    "fp8 per channel": partial(rounded, rows=1, columns=0),
    "fp8 blocks of 128": partial(rounded, rows=128, columns=128),
    "int8 per channel": partial(rounded, rows=1, columns=0, bits=8),
    "int4 groups of 32": partial(rounded, rows=1, columns=32, bits=4),
    "int4 groups of 64": partial(rounded, rows=1, columns=64, bits=4),
    "int4 groups of 128": partial(rounded, rows=1, columns=128, bits=4),
}
INPUTS = {name: FORMATS[name] for name in ("fp8 per tensor", "fp8 per channel")}
INPUTS["fp8 blocks of 128"] = partial(rounded, rows=1, columns=128)


def _parts(network: Network) -> list[tuple[dict[str, str], set[str]]]:
    """With and without what else is quantized: names of weights [E,M,N] of experts, of routers."""
    named = network.model.named_parameters()
    experts = {k for k, p in named if p.ndim == 3}
    gates = {id(p) for router in routers(network) for p in router.parameters()}
    too = {k for k, p in network.model.named_parameters() if id(p) in gates and p.ndim > 1}
    parts: list[tuple[dict[str, str], set[str]]] = [({}, experts)]
    parts += [({"experts": "left out"}, set[str]())] if experts else []
    return parts + ([({"router": "too"}, experts | too)] if too else [])


@contextmanager
def _quantized(network: Network, others: set[str], weights: Any, inputs: Any = None) -> Any:
    """The layers' linear weights, others by name, and the inputs that meet the linear ones."""
    named = network.model.named_modules()
    linear = {k: m for k, m in named if isinstance(m, nn.Linear) and ".layers." in k}
    names = {f"{k}.weight" for k in linear} | others
    of = {k: p for k, p in network.model.named_parameters() if k in names}
    one = lambda _, w: torch.stack([*map(weights, w)]) if w.ndim == 3 else weights(w)  # noqa: E731
    with ExitStack() as stack:
        stack.enter_context(edit_attributes(of, "data", one))
        for module in linear.values() if inputs else []:
            before = module.register_forward_pre_hook(lambda _, args: inputs(args[0]))
            stack.callback(before.remove)
        yield


def quantized_weights(case: Case, attempt: Attempt) -> None:
    """The layers' weights, or weights and inputs, in a coarser format; of experts and routers."""
    tried = [(name, (weights,)) for name, weights in FORMATS.items()]
    tried += [(f"{name}, inputs too", (FORMATS[name], f)) for name, f in INPUTS.items()]
    for (name, formats), (about, others) in product(tried, _parts(case.network)):
        edit = lambda n, o=others, f=formats: _quantized(n, o, *f)  # noqa: E731
        attempt({"format": name, **about}, of_model(edit))


def quantized_head(case: Case, attempt: Attempt) -> None:
    """The output head, which recipes leave out, is quantized."""
    for name, change in FORMATS.items():
        made = lambda _, w, change=change: nn.Parameter(change(w), requires_grad=False)  # noqa: E731
        head = lambda n, f=made: edit_attributes({"": n.model.lm_head}, "weight", f)  # noqa: E731
        attempt({"format": name}, of_model(head))


def quantized_cache(case: Case, attempt: Attempt) -> None:
    """Keys and values in FP8, as they are or scaled to their largest."""

    def unscaled(x: Tensor) -> Tensor:
        return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(x.dtype)

    for about, change in (({}, unscaled), ({"scale": "per tensor"}, FORMATS["fp8 per tensor"])):
        attempt({"format": "fp8", **about}, of_outputs(change, "k_proj", "v_proj"))


def precision(case: Case, attempt: Attempt) -> None:
    """The logits alone in bfloat16, or the rotary embedding's frequencies."""
    coarse = lambda x: x.bfloat16().to(x.dtype)  # noqa: E731
    attempt({"dtype": "bfloat16 logits"}, of_outputs(coarse, "lm_head"))
    attempt({"dtype": "bfloat16 rotary frequencies"}, of_attribute("inv_freq", coarse))


HYPOTHESES = named(precision, quantized_weights, quantized_cache, quantized_head)
