"""Kinds in which one side reads other tokens or places, or attends otherwise."""

from __future__ import annotations

from typing import Any

import torch
from kinds import CORRECT, Draws, Kind, any_world, cause, unclaimed
from plants_weights import hooked
from rollouts import Edit, Side
from torch import Tensor
from worlds import World


def scaled(factor: float) -> Edit:
    """Another attention scale."""

    def edit(model: Any, world: World) -> None:
        for module in model.modules():
            if hasattr(module, "scaling"):
                module.scaling *= factor

    return edit


def rope(**parameters: Any) -> dict[str, Any]:
    """A config with other rotary embeddings."""
    return {"rope_parameters": {"rope_type": "default", **parameters}}


def rounded_frequencies(model: Any, world: World) -> None:
    """inv_freq in bf16, as `model.to(bfloat16)` leaves it."""
    rotary = model.model.rotary_emb
    rotary.inv_freq = rotary.inv_freq.bfloat16().float()


def chat(world: str) -> bool:
    """Has a real chat template."""
    return world == "smollm2"


def _no_system(prompt: list[int]) -> list[int]:
    return prompt[prompt.index(1, 1) :]


def _template(name: str, change: Any, **more: Any) -> Kind:
    causes = cause("template", side="either")
    return Kind(f"template-{name}", causes, Side(prompt=change), **more)


def _trainer(name: str, *names: str, side: Side = CORRECT, left: bool = False, score: Any = None,
             worlds: Any = any_world, **parameters: Any) -> Kind:  # fmt: skip
    causes = cause(name.partition("-")[0], *names, side="trainer", **parameters)
    return Kind(name, causes, trainer=side, score=score, worlds=worlds, left=left)


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def kinds(draws: Draws) -> list[Kind]:
    """With a seed's parameters."""
    cut = draws.count("template-cut", 3, 12)
    near = draws.count("positions-near", 1, 6)
    far = draws.count("positions-far", 7, 60)
    low = draws.number("rope_base-low", 3e3, 4e4)
    high = draws.number("rope_base-high", 2e5, 3e6)
    linear = draws.number("rope_scaling", 1.3, 6)
    less = draws.number("scale-less", 0.6, 0.93)
    more = draws.number("scale-more", 1.07, 1.8)
    seen = draws.count("unclaimed-window", 16, 40)
    return [
        _template("no-system", _no_system, worlds=chat),
        _template("double-bos", lambda prompt: [prompt[0], *prompt]),
        _template("no-bos", lambda prompt: prompt[1:]),
        _template("no-generation-prompt", lambda prompt: prompt[:-3], worlds=chat),
        _template("cut", lambda prompt: prompt[cut:]),
        _trainer("positions-near", side=Side(offset=near), offset=[near, 0]),
        _trainer("positions-far", side=Side(offset=far), offset=[far, 0]),
        _trainer("positions-padding", side=Side(offset=None), left=True),
        _trainer("pads_attended", "positions", side=Side(pads=True), left=True),
        _trainer("rope_base-low", side=Side(config=rope(rope_theta=low)), theta=[low, low / 3],
                 worlds=chat),
        _trainer("rope_base-high", side=Side(config=rope(rope_theta=high)), theta=[high, high / 2]),
        _trainer("rope_scaling", factor=[linear, linear / 10], worlds=chat,
                 side=Side(config=rope(rope_theta=1e5, rope_type="linear", factor=linear))),
        _trainer("attention_scale-more", side=Side(scaled(more)), scale=[more, 0.03]),
        _trainer("attention_scale-less", side=Side(scaled(less)), scale=[less, 0.03]),
        Kind("precision-logits-bf16", cause("precision"),
             Side(logits=lambda z, *_: _bf16(z.log_softmax(-1))), subtle=True),
        Kind("precision-trainer-bf16", cause("precision", "clean", side="either"),
             trainer=Side(dtype=torch.bfloat16)),
        _trainer("precision-rope-bf16", side=Side(rounded_frequencies)),
        _trainer("precision-head-bf16", "clean", side=Side(hooked(("lm_head",), _bf16))),
        unclaimed("window", trainer=Side(window=seen)),
    ]  # fmt: skip
