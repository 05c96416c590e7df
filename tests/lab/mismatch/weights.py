"""Other weights of a model: rounded, noisy, trained on, with single tokens sent elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from sides import Prompts, Toy, forward
from torch import Tensor, nn

Edit = Callable[[Tensor], Tensor]
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "gate_up")


def changed(model: nn.Module, edit: Edit, names: tuple[str, ...] = MATRICES) -> nn.Module:
    """A copy whose matrices of these names are what `edit` makes of them."""
    copied = copy.deepcopy(model)
    for name, parameter in copied.named_parameters():
        if parameter.dim() >= 2 and any(x in name for x in names):
            parameter.data = edit(parameter.data)
    return copied


def trained(toy: Toy, updates: int, rate: float = 3e-4, named: str = "") -> nn.Module:
    """A copy after so many policy-gradient updates (Adam) of the parameters named so.

    The reward is one that can be learned: a token id by its residue.
    """
    copied, p = copy.deepcopy(toy.model), toy.prompts
    learning = [weight for name, weight in copied.named_parameters() if named in name]
    optimizer = torch.optim.AdamW(learning, rate, weight_decay=0.0)
    for _ in range(updates):
        rows = torch.randperm(len(p.ids), generator=toy.generator)[:64]
        some = replace(toy, model=copied, prompts=Prompts(p.ids[rows], p.shown[rows]))
        tokens, _, mask = some.drawn()
        reward = ((tokens % 3 == 0) & mask).float().sum(1) / mask.sum(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-3)
        with torch.enable_grad():
            scores = forward(some.own, some.prompts, tokens).log_softmax(-1)
            own = scores.gather(2, tokens[..., None])[..., 0]
            optimizer.zero_grad()
            (-(own * advantage[:, None])[mask].mean()).backward()
        optimizer.step()
    return copied


def e4m3(weight: Tensor) -> Tensor:
    """Rounded to FP8 with a scale per row."""
    scale = weight.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return (weight / scale).to(torch.float8_e4m3fn).float() * scale


def bf16(weight: Tensor) -> Tensor:
    return weight.bfloat16().float()


def e5m2(weight: Tensor) -> Tensor:
    """Rounded to FP8 of fewer digits, a scale per matrix."""
    scale = weight.abs().amax().clamp(min=1e-12) / 57344
    return (weight / scale).to(torch.float8_e5m2).float() * scale


def noisy(size: float, generator: torch.Generator) -> Edit:
    return lambda w: w * (1 + size * torch.randn(w.shape, generator=generator))


class Flips(nn.Module):
    """An MLP that sends a share of tokens to another expert."""

    def __init__(
        self, own: nn.Module, other: nn.Module, share: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.own, self.other, self.share, self.generator = own, other, share, generator

    def forward(self, x: Tensor) -> Tensor:
        flipped = torch.rand(x.shape[:-1], generator=self.generator) < self.share
        return torch.where(flipped[..., None], self.other(x), self.own(x))


def adapted(model: nn.Module, tuned: nn.Module, size: float, rank: int = 4) -> nn.Module:
    """With so much of what tuning has changed in the projections, cut to a rank."""
    copied, to = copy.deepcopy(model), dict(tuned.named_parameters())
    for name, weight in copied.named_parameters():
        if "_proj" in name and weight.dim() > 1:
            u, s, v = torch.linalg.svd((to[name] - weight).detach(), full_matrices=False)
            change = (u[..., :rank] * s[..., None, :rank]) @ v[..., :rank, :]
            weight.data = weight.data + size * change
    return copied
