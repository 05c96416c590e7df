"""Which weights: of an earlier checkpoint, with another adapter, in another number format."""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nemo_algos.engines.dumps.responses import Response
from nemo_algos.engines.local.low_precision import (
    E4M3_MAX,
    cast,
    float32_scale,
    in_blocks,
    nvfp4_blocks,
)
from nemo_algos.findings import first_line
from nemo_algos.lab.mismatch.hypotheses.forward import (
    Attempt,
    Case,
    Hypothesis,
    named,
    of_attribute,
    of_model,
    of_outputs,
    search_grid,
)
from nemo_algos.lab.mismatch.network import (
    Change,
    Lines,
    Network,
    edit_attributes,
    edit_outputs,
    logits,
    modules,
)

Weights = dict[str, Tensor]
BLOCKS = (16, 1, 32, 64)  # tokens that a cache keeps together; vLLM: 16
KINDS = {
    "embed_tokens": r"embed",
    "lm_head": r"lm_head",
    "self_attn": r"self_attn",
    "mlp": r"\.mlp\.",
    "norm": r"norm",
    "all but norm": r"^(?!.*norm)",
    "layers": r"\.layers\.",
}


def _edited(which: Callable[[str], object], edit: Callable[[str, Tensor], Tensor]) -> Change:
    """The parameters of these names are edit(name, parameter)."""
    named = lambda n: {k: p for k, p in n.model.named_parameters() if which(k)}  # noqa: E731
    return of_model(lambda n: edit_attributes(named(n), "data", edit))


def replaced(old: Weights, which: Callable[[str], bool] = lambda _: True) -> Change:
    """The parameters of these names are the old ones."""
    return _edited(which, lambda name, now: old[name].to(now.dtype))


def old_weights(case: Case, attempt: Attempt) -> None:
    """All are of an earlier checkpoint."""
    for name, old in case.previous.items():
        attempt({"folder": name}, replaced(old))


def partial_weights(case: Case, attempt: Attempt) -> None:
    """Some modules are of an earlier checkpoint: kinds of modules, then a bisection of layers."""
    for name in case.previous:
        for kind, pattern in KINDS.items():
            _of_checkpoint(case, attempt, name, kind, pattern)
        low = 0
        high = case.network.model.config.num_hidden_layers
        while high - low > 1:
            middle = (low + high) // 2
            first = _old_layers(case, attempt, name, low, middle)
            if first < _old_layers(case, attempt, name, middle, high):
                high = middle
            else:
                low = middle


def _of_checkpoint(case: Case, attempt: Attempt, name: str, modules: str, pattern: str) -> float:
    """The level with the parameters whose names have the pattern of an earlier checkpoint."""
    within = re.compile(pattern).search
    change = replaced(case.previous[name], lambda parameter: bool(within(parameter)))
    return attempt({"folder": name, "modules": modules}, change)


def _old_layers(case: Case, attempt: Attempt, name: str, low: int, high: int) -> float:
    modules = f"layers {low} to {high - 1}"
    if high - low == 1:
        modules = f"layer {low}"
    numbers = "|".join(map(str, range(low, high)))
    return _of_checkpoint(case, attempt, name, modules, rf"\.layers\.({numbers})\.")


def stale_prefix(case: Case, attempt: Attempt) -> None:
    """Keys and values of prompts are of an earlier checkpoint: a cache outlived a refit."""
    for name, old in case.previous.items() if _cached(case.network) else ():
        for block in BLOCKS:
            attempt({"folder": name, "block": block}, _stale(old, block))


def _stale(old: Weights, block: int) -> Change:
    @contextmanager
    def change(network: Network, shown: Lines, some: Sequence[Response]) -> Iterator[Lines]:
        of = _cached(network)
        kept = dict[int, Tensor]()
        before = replaced(old)(network, shown, some)
        with before, edit_outputs(of, lambda i, y: kept.setdefault(i, y)):
            logits(network, shown)
        stale = torch.zeros(*shown.ids.shape, 1, dtype=torch.bool)
        for line, at in shown.at:
            stale[line, : int(at[0]) // block * block] = True  # the last token is computed anew
        with edit_outputs(of, lambda i, y: torch.where(stale, kept[i].to(y.dtype), y)):
            yield shown

    return change


def _cached(network: Network) -> list[Any]:
    return modules(network, "k_proj", "v_proj")


def adapted(adapter: Weights, scale: float, dtype: torch.dtype | None = None) -> Change:
    """W + scale BA; rounded to a dtype after the merge."""

    def edit(name: str, now: Tensor) -> Tensor:
        merged = now.float() + scale * adapter[name]
        return merged.to(dtype or now.dtype).to(now.dtype)

    return _edited(adapter.__contains__, edit)


def _scaled(*scales: float) -> Callable[[Case, Attempt], None]:
    """The adapter has another scale, where 1 is the trainer's; between several it is searched."""

    def attempted(case: Case, attempt: Attempt) -> None:
        if case.adapter:  # which the model has once
            search_grid(lambda s: attempt({"scale": s}, adapted(case.adapter, s - 1)), scales)

    return attempted


def adapter_merged(case: Case, attempt: Attempt) -> None:
    """Merged into weights in bfloat16, where what is below their grid is lost."""
    if case.adapter:
        attempt({"dtype": "bfloat16"}, adapted(case.adapter, 0.0, torch.bfloat16))


def lora(folder: Path, network: Network) -> Weights:
    """What PEFT's adapter in a folder adds to each parameter.

    Raises ValueError where it is none, or does not fit the network.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no .safetensors file. Name the folder of a PEFT adapter.")
    try:
        found = {}
        for file in files:
            found.update(load_file(file))
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        rank = float(config["r"])
        alpha = float(config["lora_alpha"])
    except (
        OSError, ValueError, LookupError, TypeError, OverflowError, SafetensorError, RuntimeError
    ) as error:  # fmt: skip
        raise ValueError(f"{folder} is not a PEFT adapter: {first_line(error)}") from None
    if not (1 <= rank < math.inf and math.isfinite(alpha)):
        raise ValueError(
            f"{folder}: adapter_config.json has r {config['r']} and lora_alpha "
            f"{config['lora_alpha']}. r must be 1 or more, and both finite: save the adapter again."
        )
    scale = alpha / rank**0.5 if config.get("use_rslora") else alpha / rank
    parameters = dict(network.model.named_parameters())
    added = {}
    for name in found:
        if ".lora_A" not in name:
            continue
        own = name.split(".lora_A")[0].removeprefix("base_model.model.") + ".weight"
        a = found[name]
        b = found.get(name.replace("lora_A", "lora_B"))
        if b is None or (a.ndim, b.ndim) != (2, 2) or len(a) != b.shape[1]:
            raise ValueError(
                f"{folder}: {name} has no lora_B of the same rank. Save the adapter again."
            )
        if own not in parameters or parameters[own].shape != (len(b), a.shape[1]):
            raise ValueError(
                f"{folder} does not fit --model: {own} is missing there or has a different size"
            )
        added[own] = scale * b.float() @ a.float()
        if not added[own].isfinite().all():
            raise ValueError(f"{folder}: {name} has values that are not finite. Save it again.")
    if not added:
        raise ValueError(f"{folder} has no lora_A tensor. Name the folder of a LoRA adapter.")
    return added


def rounded(x: Tensor, rows: int, columns: int, bits: int = 0) -> Tensor:
    """x [...,N] with a scale a block; 0 rows or columns: all. bits: of an integer; 0: E4M3."""
    flat = x.float().flatten(0, -2)

    def coarse(blocks: Tensor, largest: Tensor) -> Tensor:
        if not bits:
            dtype = torch.float8_e4m3fn
            return cast(blocks, float32_scale(largest, dtype), dtype)
        scale = (largest / (2 ** (bits - 1) - 1)).where(largest > 0, 1.0)
        return (blocks / scale).round() * scale

    made = in_blocks(flat, rows or len(flat), columns or flat.shape[1], coarse)
    return made.view(x.shape).to(x.dtype)


def _nvfp4(rows: int, x: Tensor) -> Tensor:
    """x [...,N] in E2M1, with a scale for so many rows of 16."""
    return nvfp4_blocks(rows)(x.float().flatten(0, -2)).view(x.shape).to(x.dtype)


FORMATS: dict[str, Any] = {
    "fp8 per tensor": partial(rounded, rows=0, columns=0),
    "fp8 per channel": partial(rounded, rows=1, columns=0),
    "fp8 blocks of 128": partial(rounded, rows=128, columns=128),
    "nvfp4": partial(_nvfp4, 1),
    "nvfp4 in squares": partial(_nvfp4, 16),  # as Transformer Engine trains
    "int8 per channel": partial(rounded, rows=1, columns=0, bits=8),
    "int4 groups of 32": partial(rounded, rows=1, columns=32, bits=4),
    "int4 groups of 64": partial(rounded, rows=1, columns=64, bits=4),
    "int4 groups of 128": partial(rounded, rows=1, columns=128, bits=4),
}
INPUTS = {name: FORMATS[name] for name in ("fp8 per tensor", "fp8 per channel")}
INPUTS["fp8 blocks of 128"] = partial(rounded, rows=1, columns=128)
INPUTS |= dict.fromkeys(("nvfp4", "nvfp4 in squares"), partial(_nvfp4, 1))


def _parts(network: Network) -> list[tuple[dict[str, str], set[str]]]:
    """With and without what else is quantized: names of weights [E,M,N] of experts, of routers."""
    in_routers = set[int]()
    for router in routers(network):
        in_routers.update(map(id, router.parameters()))
    experts = set[str]()
    gates = set[str]()
    for name, parameter in network.model.named_parameters():
        if parameter.ndim == 3:
            experts.add(name)
        if parameter.ndim > 1 and id(parameter) in in_routers:
            gates.add(name)
    parts: list[tuple[dict[str, str], set[str]]] = [({}, experts)]
    if experts:
        parts.append(({"experts": "left out"}, set()))
    if gates:
        parts.append(({"router": "too"}, experts | gates))
    return parts


def routers(network: Network) -> list[nn.Module]:
    """Those that give logits, weights and experts of each token."""
    return [m for m in network.model.modules() if type(m).__name__.endswith("TopKRouter")]


@contextmanager
def _quantized(network: Network, others: set[str], weights: Any, inputs: Any = None) -> Any:
    """The layers' linear weights, others by name, and the inputs that meet the linear ones."""
    linear = {}
    names = set(others)
    for name, module in network.model.named_modules():
        if isinstance(module, nn.Linear) and ".layers." in name:
            linear[name] = module
            names.add(f"{name}.weight")
    of = {k: p for k, p in network.model.named_parameters() if k in names}

    def coarse(_: str, weight: Tensor) -> Tensor:
        if weight.ndim == 3:  # an expert after the other
            return torch.stack([*map(weights, weight)])
        return weights(weight)

    with ExitStack() as stack:
        stack.enter_context(edit_attributes(of, "data", coarse))
        for module in linear.values() if inputs else []:
            before = module.register_forward_pre_hook(lambda _, args: inputs(args[0]))
            stack.callback(before.remove)
        yield


def quantized_weights(case: Case, attempt: Attempt) -> None:
    """The layers' weights, or weights and inputs, in a coarser format; of experts and routers."""

    def coarse(others: set[str], weights: Any, inputs: Any = None) -> Change:
        return of_model(lambda network: _quantized(network, others, weights, inputs))

    parts = _parts(case.network)
    for name, weights in FORMATS.items():
        for about, others in parts:
            attempt({"format": name, **about}, coarse(others, weights))
    for name, inputs in INPUTS.items():
        for about, others in parts:
            change = coarse(others, FORMATS[name], inputs)
            attempt({"format": f"{name}, inputs too", **about}, change)


def quantized_head(case: Case, attempt: Attempt) -> None:
    """The output head, which recipes leave out, is quantized."""

    def coarse(rounded: Callable[[Tensor], Tensor]) -> Change:
        def edit(_: str, weight: Tensor) -> nn.Parameter:
            return nn.Parameter(rounded(weight), requires_grad=False)

        return of_model(lambda network: edit_attributes({"": network.head}, "weight", edit))

    for name, rounded in FORMATS.items():
        attempt({"format": name}, coarse(rounded))


def quantized_cache(case: Case, attempt: Attempt) -> None:
    """Keys and values in FP8, as they are or scaled to their largest."""

    def unscaled(x: Tensor) -> Tensor:
        return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(x.dtype)

    for about, change in (({}, unscaled), ({"scale": "per tensor"}, FORMATS["fp8 per tensor"])):
        attempt({"format": "fp8", **about}, of_outputs(change, "k_proj", "v_proj"))


def precision(case: Case, attempt: Attempt) -> None:
    """The logits alone in bfloat16, or the rotary embedding's frequencies."""

    def coarse(x: Tensor) -> Tensor:
        return x.bfloat16().to(x.dtype)

    head = of_model(lambda network: edit_outputs([network.head], lambda _, y: coarse(y)))
    attempt({"dtype": "bfloat16 logits"}, head)
    attempt({"dtype": "bfloat16 rotary frequencies"}, of_attribute("inv_freq", coarse))


def missing_part(case: Case, attempt: Attempt) -> None:
    """Norms are 1, biases 0, or a layer adds nothing, as where weights never arrived."""
    attempt(
        {"part": "norms"},
        _edited(re.compile(r"norm\w*\.weight$").search, lambda _, now: torch.ones_like(now)),
    )
    parts = {"biases": r"\.bias$"}
    for i in range(case.network.model.config.num_hidden_layers):
        parts[f"layer {i}"] = rf"\.layers\.{i}\..*(o_proj|down_proj)\."
    for part, pattern in parts.items():
        attempt(
            {"part": part},
            _edited(re.compile(pattern).search, lambda _, now: torch.zeros_like(now)),
        )


HYPOTHESES = [
    Hypothesis("old_weights", old_weights),
    Hypothesis("adapter_missing", _scaled(0.0)),
    Hypothesis("adapter_twice", _scaled(2.0)),
    Hypothesis("adapter_scale", _scaled(0.0, 0.5, 2.0, 4.0, 8.0)),  # rsLoRA: the root of the rank
    Hypothesis("adapter_merged_bf16", adapter_merged),
    Hypothesis("stale_prefix", stale_prefix),
    Hypothesis("partial_weights", partial_weights),
    *named(precision, quantized_weights, quantized_cache, quantized_head),
]
