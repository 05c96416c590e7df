"""Kinds in which one side reads other tokens, places or neighbours, or attends otherwise."""

from __future__ import annotations

from typing import Any

import torch
from kinds import CORRECT, Kind, any_world, cause
from plants_weights import hooked
from rollouts import GROUP, Edit, Side, build, ended
from torch import Tensor
from worlds import World


def packed(count: int) -> Any:
    """A trainer that packs responses into rows, positions reset, and lets them see each other."""

    @torch.no_grad()
    def score(world: World, side: Side, prompts: list[list[int]], tokens: Tensor) -> Any:
        model = build(world, side, torch.float32)
        lengths = ended(tokens, world.end).sum(1).tolist()
        rows = [
            torch.tensor([*prompts[i // GROUP], *row[:n].tolist()])
            for i, (row, n) in enumerate(zip(tokens, lengths, strict=True))
        ]
        logprobs, entropies = torch.zeros(tokens.shape), torch.zeros(tokens.shape)
        for start in range(0, len(rows), count):
            pack, behind = rows[start : start + count], 0
            table = _pass(model, pack)
            for i, row in enumerate(pack, start):
                behind += len(row)
                own = table[behind - lengths[i] - 1 : behind - 1]
                drawn = tokens[i, : lengths[i], None]
                logprobs[i, : lengths[i]] = own.gather(1, drawn)[:, 0]
                entropies[i, : lengths[i]] = -(own.exp() * own).sum(-1)
        return logprobs, entropies

    return score


def _pass(model: Any, pack: list[Tensor]) -> Tensor:
    """Log-probs [N,V] of one row that holds them all, causal and nothing else."""
    ids, places = torch.cat(pack), torch.cat([torch.arange(len(row)) for row in pack])
    unseen = torch.full((len(ids), len(ids)), torch.finfo(torch.float32).min).triu(1)
    given = {"attention_mask": unseen[None, None], "position_ids": places[None]}
    return model(input_ids=ids[None], **given).logits[0].log_softmax(-1)


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
    """Replayed routes lie a token late: those of an undisturbed forward of the same row."""
    routes: dict[Any, Tensor] = {}
    model.recording = False

    def record(model: Any, given: Any, named: Any) -> None:
        if not model.recording:
            model.recording = True
            model(*given, **named)
            model.recording = False

    def late(gate: Any, given: Any, out: Any) -> Any:
        if model.recording:
            routes[gate] = out[2]
            return None
        picked = torch.cat([routes[gate][:1], routes[gate][:-1]])
        return out[0], _weights(gate, out[0].float().softmax(-1), picked, out[0]), picked

    model.register_forward_pre_hook(record, with_kwargs=True)
    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(late)


def moe(world: str) -> bool:
    """Has routers."""
    return world == "moe"


def gemma(world: str) -> bool:
    """Has soft caps."""
    return world == "gemma"


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


KINDS = [
    _template("no-system", _no_system, worlds=chat),
    _template("double-bos", lambda prompt: [prompt[0], *prompt]),
    _template("no-bos", lambda prompt: prompt[1:]),
    _template("no-generation-prompt", lambda prompt: prompt[:-3], worlds=chat),
    _template("cut-12", lambda prompt: prompt[12:] if len(prompt) > 24 else prompt[4:]),
    _trainer("positions-offset-1", side=Side(offset=1), offset=[1, 0]),
    _trainer("positions-offset-16", side=Side(offset=16), offset=[16, 0]),
    _trainer("positions-padding", side=Side(offset=None), left=True),
    _trainer("pads_attended", "positions", side=Side(pads=True), left=True),
    Kind("sliding_window-24", cause("sliding_window", window=[24, 2]), Side(window=24)),
    _trainer("sliding_window-trainer-40", side=Side(window=40), window=[40, 3]),
    _trainer("rope_base-1e4", side=Side(config=rope(rope_theta=1e4)), theta=[1e4, 3e3],
             worlds=chat),
    _trainer("rope_base-5e5", side=Side(config=rope(rope_theta=5e5)), theta=[5e5, 1.5e5]),
    _trainer("rope_scaling-2", factor=[2, 0.2], worlds=chat,
             side=Side(config=rope(rope_theta=1e5, rope_type="linear", factor=2.0))),
    _trainer("attention_scale-1.1", side=Side(scaled(1.1)), scale=[1.1, 0.03]),
    _trainer("attention_scale-0.9", side=Side(scaled(0.9)), scale=[0.9, 0.03]),
    Kind("softcap-missing", cause("softcap", cap=[30, 4]),
         Side(config={"final_logit_softcapping": None}), worlds=gemma),
    _trainer("packing-4", score=packed(4), responses=[4, 0]),
    _trainer("packing-2", score=packed(2), responses=[2, 0]),
    Kind("precision-logits-bf16", cause("precision"),
         Side(logits=lambda z, *_: _bf16(z.log_softmax(-1))), subtle=True),
    Kind("precision-trainer-bf16", cause("precision", "clean", side="either"),
         trainer=Side(dtype=torch.bfloat16)),
    _trainer("precision-rope-bf16", side=Side(rounded_frequencies)),
    _trainer("precision-head-bf16", "clean", side=Side(hooked(("lm_head",), _bf16))),
    _trainer("routes-offset-1", side=Side(shifted_routes), score=packed(1), offset=[1, 0],
             worlds=moe),
    _trainer("routes-noise", side=Side(noisy_routes(0.3)), worlds=moe),
]  # fmt: skip
