"""Kinds in which one side computes with other weights, or in another precision."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from kinds import CORRECT, VERSION, Draws, Kind, Rollout, cause, unclaimed
from rollouts import Edit, Side
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from worlds import World


def old(version: str, only: str = "") -> Edit:
    """The weights of previous/VERSION, of modules whose name holds `only`."""

    def load(model: Any, world: World) -> None:
        folder = str(world.folder / "previous" / version)
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
        for name, weight in model.named_parameters():
            if only in name:
                weight.copy_(theirs[name])

    return load


def adapter(scale: float = 1.0, merged: torch.dtype | None = None) -> Edit:
    """W + scale * B A; `merged`: the sum is stored in that dtype."""

    def add(model: Any, world: World) -> None:
        folder = world.folder / "adapter"
        config = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
        for key, a in tensors.items():
            if "lora_A" in key:
                name = key.removeprefix("base_model.model.").replace("lora_A.weight", "weight")
                weight = model.get_parameter(name)
                b = tensors[key.replace("lora_A", "lora_B")]
                weight.add_(b @ a, alpha=scale * config["lora_alpha"] / config["r"])
                if merged:
                    weight.copy_(weight.to(merged))

    return add


def each_linear(change: Callable[[Tensor], Tensor]) -> Edit:
    """Every projection's weight, not the embedding's or the head's."""

    def edit(model: Any, world: World) -> None:
        for name, weight in model.named_parameters():
            if weight.ndim >= 2 and "embed" not in name and "head" not in name:
                weight.copy_(change(weight))

    return edit


def grid(levels: int, size: int = 0) -> Callable[[Tensor], Tensor]:
    """Rounds to symmetric integers, a scale for each row or for `size` inputs."""

    def rounded(w: Tensor) -> Tensor:
        parts = w.reshape(-1, size or w.shape[-1])
        step = parts.abs().amax(-1, keepdim=True).clamp(min=1e-9) / levels
        return ((parts / step).round() * step).reshape(w.shape)

    return rounded


def fp8(x: Tensor) -> Tensor:
    """e4m3, a scale for the tensor."""
    step = x.abs().max().clamp(min=1e-9) / 448
    return (x / step).to(torch.float8_e4m3fn).to(x.dtype) * step


int8, int4, fp8_weights = each_linear(grid(127)), each_linear(grid(7, 32)), each_linear(fp8)


def hooked(names: tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Edit:
    """What modules with these endings return."""

    def edit(model: Any, world: World) -> None:
        for name, module in model.named_modules():
            if name.endswith(names):
                module.register_forward_hook(lambda _, given, out: change(out))

    return edit


def head(change: Callable[[Tensor], Tensor]) -> Edit:
    """The head's weight alone, also where it is tied to the embedding."""

    def edit(model: Any, world: World) -> None:
        model.lm_head.weight = torch.nn.Parameter(change(model.lm_head.weight.clone()))

    return edit


def layer(place: float, module: str, change: Callable[[Tensor], Tensor]) -> Edit:
    """One layer's module; place: 0 first, 1 last."""

    def edit(model: Any, world: World) -> None:
        layers = model.model.layers
        weight = layers[at(len(layers), place)].get_parameter(module + ".weight")
        weight.copy_(change(weight))

    return edit


def at(layers: int, place: float) -> int:
    """The layer's number."""
    return round(place * (layers - 1))


def swap(w: Tensor) -> Tensor:
    """The halves of the rows, as two exchanged tensor-parallel shards."""
    return w.roll(len(w) // 2, 0)


def epsilon(value: float) -> Edit:
    """Of all norms."""

    def edit(model: Any, world: World) -> None:
        for module in model.modules():
            for name in ("variance_epsilon", "eps"):
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, value)

    return edit


def dropout(rate: float) -> Edit:
    """In every MLP, as of a trainer in train mode."""
    return hooked((".mlp",), lambda out: torch.nn.functional.dropout(out, rate))


def _of(name: str, edit: Edit, *names: str, side: str = "sampler", **parameters: Any) -> Kind:
    """A side with other weights: the name's first part is the cause's."""
    causes = cause(name.partition("-")[0], *names, side=side, **parameters)
    changed = Side(edit)
    both = (changed, CORRECT) if side == "sampler" else (CORRECT, changed)
    return Kind(name, causes, *both)


def _adapted(name: str, edit: Edit | None, *names: str, **parameters: Any) -> Kind:
    """A run that trains the adapter; the sampler has it otherwise."""
    causes = cause(name, *names, **parameters)
    return Kind(name, causes, Side(edit), Side(adapter()), adapted=True)


def versions(rollout: Rollout, world: World, draw: torch.Generator) -> Rollout:
    """The version of the weights: v1 before the middle, the trainer's after it."""
    late = torch.arange(world.length) > world.length // 2
    return replace(rollout, versions=torch.where(late, VERSION, 1).expand(rollout.tokens.shape))


def kinds(draws: Draws) -> list[Kind]:
    """With a seed's parameters."""
    group = draws.one_of("int4", 16, 32, 64, 128)
    eps = draws.number("norm_eps", 3e-5, 2e-3)
    scale = draws.number("adapter_scale", 0.2, 4)
    part = draws.one_of("partial_weights", "mlp", "self_attn", "embed", "layers.1")
    version = draws.one_of("old_weights-trainer", "v1", "v2", "v3")
    stale = draws.count("stale_prefix-some", 2, 4)
    place, rate = (
        draws.number("unclaimed-layer", 0, 1),
        draws.number("unclaimed-dropout", 0.02, 0.1),
    )
    return [
        _of("old_weights-v1", old("v1"), version="v1"),
        _of("old_weights-v2", old("v2"), version="v2"),
        _of("old_weights-v3", old("v3"), version="v3"),
        _of("old_weights-trainer", old(version), side="trainer", version=version),
        _of("partial_weights", old("v1", part), folder="v1"),
        _of("quantized_weights-fp8", fp8_weights, format="fp8"),
        _of("quantized_weights-int8", int8, format="int8"),
        _of("quantized_weights-int4", each_linear(grid(7, group)), format="int4"),
        _of("quantized_cache-fp8", hooked(("k_proj", "v_proj"), fp8), format="fp8"),
        _of("quantized_head-fp8", head(fp8), format="fp8"),
        _of("quantized_head-int4", head(grid(7, group)), format="int4"),
        _of("norm_eps", epsilon(eps), side="trainer", eps=[eps, eps]),
        _adapted("adapter_missing", None),
        _adapted("adapter_twice", adapter(2), "adapter_scale", scale=[2, 0.1]),
        _adapted("adapter_scale", adapter(scale), scale=[scale, 0.1]),
        _adapted("adapter_merged_bf16", adapter(merged=torch.bfloat16), "precision", "clean"),
        Kind("clean-adapter", (), Side(adapter()), Side(adapter()), also=("clean", "precision"),
             adapted=True),
        Kind("stale_prefix-all", cause("stale_prefix", folder="v1"), Side(prefix=old("v1"))),
        Kind("stale_prefix-some", cause("stale_prefix", folder="v1"),
             Side(prefix=old("v1"), stale=stale)),
        unclaimed("in-flight", Side(old("v1"), later=lambda model, world: None), records=versions),
        unclaimed("layer", Side(layer(place, "self_attn.o_proj", lambda w: w * 1.5))),
        unclaimed("shards", Side(layer(place, "self_attn.q_proj", swap))),
        unclaimed("dropout", trainer=Side(dropout(rate))),
    ]  # fmt: skip
