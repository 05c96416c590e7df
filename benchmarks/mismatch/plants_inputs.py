"""Kinds in which one side reads other tokens, places or neighbours, or attends otherwise."""

from __future__ import annotations

from typing import Any

import torch
from kinds import Kind, cause
from plants_weights import hooked
from rollouts import GROUP, Edit, Side, build
from torch import Tensor
from worlds import World


def packed(count: int) -> Any:
    """A trainer that packs responses into rows, positions reset, and lets them see each other."""

    @torch.no_grad()
    def score(world: World, side: Side, prompts: list[list[int]], tokens: Tensor) -> Any:
        model = build(world, side, torch.float32)
        rows = [
            [*prompt, *row] for prompt, row in zip(_each(prompts), tokens.tolist(), strict=True)
        ]
        logprobs, entropies = [], []
        for start in range(0, len(rows), count):
            pack = rows[start : start + count]
            ids = torch.tensor([token for row in pack for token in row])[None]
            places = torch.cat([torch.arange(len(row)) for row in pack])[None]
            seen = torch.full((ids.shape[1],) * 2, torch.finfo(torch.float32).min).triu(1)
            logits = model(
                input_ids=ids, position_ids=places, attention_mask=seen[None, None]
            ).logits
            ends = torch.tensor([len(row) for row in pack]).cumsum(0)
            spots = ends[:, None] - world.length - 1 + torch.arange(world.length)
            table = logits[0, spots].log_softmax(-1)
            logprobs.append(table.gather(-1, ids[0, spots + 1][..., None])[..., 0])
            entropies.append(-(table.exp() * table).sum(-1))
        return torch.cat(logprobs), torch.cat(entropies)

    return score


def _each(prompts: list[list[int]]) -> list[list[int]]:
    return [prompt for prompt in prompts for _ in range(GROUP)]


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


def noisy_routes(sigma: float) -> Edit:
    """The router's choice by other logits, as without replay: scattered tokens go elsewhere."""

    def edit(model: Any, world: World) -> None:
        for name, module in model.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(lambda gate, given, out: _chosen(gate, out[0], sigma))

    return edit


def _chosen(gate: Any, logits: Tensor, sigma: float) -> tuple[Tensor, Tensor, Tensor]:
    chances = logits.float().softmax(-1)
    picked = (logits + sigma * torch.randn_like(logits)).topk(gate.top_k, -1).indices
    return logits, _weights(gate, chances, picked, logits), picked


def _weights(gate: Any, chances: Tensor, picked: Tensor, logits: Tensor) -> Tensor:
    taken = chances.gather(-1, picked)
    return (taken / taken.sum(-1, keepdim=True) if gate.norm_topk_prob else taken).to(logits.dtype)


def shifted_routes(model: Any, world: World) -> None:
    """Replayed routes lie a token late."""

    def late(gate: Any, given: Any, out: Any) -> Any:
        picked = out[2].reshape(model.rows, -1, gate.top_k)
        picked = torch.cat([picked[:, :1], picked[:, :-1]], 1).reshape(out[2].shape)
        return out[0], _weights(gate, out[0].float().softmax(-1), picked, out[0]), picked

    def rows(model: Any, given: Any, named: Any) -> None:
        model.rows = len(named["input_ids"])

    model.register_forward_pre_hook(rows, with_kwargs=True)
    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(late)


def moe(world: str) -> bool:
    """Has routers."""
    return world == "moe"


def chat(world: str) -> bool:
    """Has a real chat template."""
    return world == "smollm2"


def _no_system(prompt: list[int]) -> list[int]:
    return prompt[prompt.index(1, 1) :]


def _template(name: str, change: Any, **more: Any) -> Kind:
    causes = cause("template", side="either")
    return Kind(f"template-{name}", causes, Side(prompt=change), **more)


def _trainer(name: str, *names: str, score: Any = None, worlds: Any = None, side: Any = None,
             **parameters: Any) -> Kind:  # fmt: skip
    causes = cause(name.partition("-")[0], *names, side="trainer", **parameters)
    more = {"worlds": worlds} if worlds else {}
    return Kind(name, causes, trainer=side or Side(), score=score, **more)


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


KINDS = [
    _template("no-system", _no_system, worlds=chat),
    _template("double-bos", lambda prompt: [prompt[0], *prompt]),
    _template("no-bos", lambda prompt: prompt[1:]),
    _template("no-generation-prompt", lambda prompt: prompt[:-3], worlds=chat),
    _template("cut-12", lambda prompt: prompt[12:] if len(prompt) > 24 else prompt[4:]),
    _trainer("positions-offset-1", side=Side(offset=1), offset=[1, 0]),
    _trainer("positions-offset-16", side=Side(offset=16), offset=[16, 0]),
    _trainer("positions-padding", side=Side(offset=None)),
    _trainer("pads_attended", "positions", side=Side(pads=True)),
    Kind("sliding_window-24", cause("sliding_window", window=[24, 2]), Side(window=24)),
    _trainer("sliding_window-trainer-40", side=Side(window=40), window=[40, 3]),
    _trainer("rope_base-1e4", side=Side(config=rope(rope_theta=1e4)), theta=[1e4, 3e3],
             worlds=chat),
    _trainer("rope_base-5e5", side=Side(config=rope(rope_theta=5e5)), theta=[5e5, 1.5e5]),
    _trainer("rope_scaling-2", factor=[2, 0.2], worlds=chat,
             side=Side(config=rope(rope_theta=1e5, rope_type="linear", factor=2.0))),
    _trainer("attention_scale-1.1", side=Side(scaled(1.1)), scale=[1.1, 0.03]),
    _trainer("attention_scale-0.9", side=Side(scaled(0.9)), scale=[0.9, 0.03]),
    _trainer("packing-4", score=packed(4)),
    _trainer("packing-2", score=packed(2)),
    Kind("precision-logits-bf16", cause("precision"),
         Side(logits=lambda z, *_: _bf16(z.log_softmax(-1)))),
    Kind("precision-trainer-bf16", cause("precision", "clean", side="either"),
         trainer=Side(dtype=torch.bfloat16)),
    _trainer("precision-rope-bf16", side=Side(rounded_frequencies)),
    _trainer("precision-head-bf16", "clean", side=Side(hooked(("lm_head",), _bf16))),
    _trainer("routes-offset-1", side=Side(shifted_routes), offset=[1, 0], worlds=moe),
    _trainer("routes-noise", side=Side(noisy_routes(0.3)), worlds=moe),
]  # fmt: skip
