"""A model as sampler or trainer: what it draws, what it records, how it scores.

B responses of T tokens to prompts of up to L tokens, left-padded; V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nemo_algos.engines.mismatch.dump import Dump


@dataclass(frozen=True)
class Side:
    """A model as the sampler or the trainer runs it."""

    model: nn.Module
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    padding: int = 0  # logits of 0 beyond the vocabulary
    recorded: str = "processed"  # or raw: the log-probs of the whole distribution at temperature 1
    half: bool = False  # logits rounded to bf16


@dataclass(frozen=True)
class Prompts:
    """ids, shown [B,L]: left-padded, and where they are no padding."""

    ids: Tensor
    shown: Tensor

    @property
    def positions(self) -> Tensor:
        return (self.shown.long().cumsum(1) - 1).clamp(min=0)

    @property
    def lengths(self) -> Tensor:
        return self.shown.sum(1)


def logprobs(logits: Tensor, side: Side) -> tuple[Tensor, Tensor]:
    """[...,V] each: what is drawn from, and what is recorded of it."""
    z = logits.float()
    if side.half:
        z = z.bfloat16().float()
    if side.padding:
        z = torch.cat((z, z.new_zeros(*z.shape[:-1], side.padding)), -1)
    whole = (z / side.temperature).log_softmax(-1)[..., : logits.shape[-1]]
    kept = whole
    if side.top_k:
        least = kept.topk(side.top_k, -1).values[..., -1:]
        kept = kept.where(kept >= least, -torch.inf)
    if side.top_p < 1:
        p, order = kept.softmax(-1).sort(-1, descending=True)
        inside = torch.zeros_like(p, dtype=torch.bool).scatter(
            -1, order, p.cumsum(-1) - p < side.top_p
        )
        kept = kept.where(inside, -torch.inf)
    if side.top_k or side.top_p < 1:
        kept = kept.log_softmax(-1)
    return kept, (z.log_softmax(-1)[..., : logits.shape[-1]] if side.recorded == "raw" else kept)


@torch.no_grad()
def draw(
    side: Side,
    prompts: Prompts,
    length: int,
    generator: torch.Generator,
    cache: Any = None,
    end: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, recorded log-probs and mask [B,T]; cache: of the prompts but their last token."""
    shown, at = prompts.shown.long(), prompts.positions[:, -1:]
    if cache is None:
        out = side.model(
            input_ids=prompts.ids,
            attention_mask=shown,
            position_ids=prompts.positions,
            use_cache=True,
        )
    else:
        out = side.model(
            input_ids=prompts.ids[:, -1:],
            attention_mask=shown,
            position_ids=at,
            past_key_values=cache,
            use_cache=True,
        )
    columns, alive = [], torch.ones(len(shown), dtype=torch.bool)
    for _ in range(length):
        drawn, recorded = logprobs(out.logits[:, -1], side)
        token = torch.multinomial(drawn.exp(), 1, generator=generator)
        columns.append((token[:, 0], recorded.gather(1, token)[:, 0], alive))
        if end is not None:
            alive = alive & (token[:, 0] != end)
        shown, at = torch.cat((shown, torch.ones_like(token)), 1), at + 1
        out = side.model(
            input_ids=token,
            attention_mask=shown,
            position_ids=at,
            past_key_values=out.past_key_values,
            use_cache=True,
        )
    tokens, recorded, mask = (torch.stack(c, 1) for c in zip(*columns, strict=True))
    return tokens, recorded, mask


def forward(
    side: Side, prompts: Prompts, tokens: Tensor, positions: Tensor | None = None
) -> Tensor:
    """[B,T,V] logits of the responses' tokens by one forward."""
    ids = torch.cat((prompts.ids, tokens), 1)
    shown = torch.cat((prompts.shown.long(), torch.ones_like(tokens)), 1)
    if positions is None:
        positions = (shown.cumsum(1) - 1).clamp(min=0)
    logits = side.model(input_ids=ids, attention_mask=shown, position_ids=positions).logits
    return logits[:, prompts.ids.shape[1] - 1 : -1]


@torch.no_grad()
def score(side: Side, prompts: Prompts, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
    """[B,T,V] log-probs of every token."""
    return logprobs(forward(side, prompts, tokens, positions), side)[0]


def dumped(
    tokens: Tensor, mask: Tensor, recorded: Tensor, scores: Tensor, prompts: Prompts, **more: Any
) -> Dump:
    """With every optional field."""
    own = scores.gather(2, tokens[..., None])[..., 0]
    entropy = -(scores.exp() * scores.clamp(min=-1e4)).sum(-1)
    fields = {
        "tokens": tokens,
        "mask": mask,
        "sampler_logprobs": recorded.where(mask, 0.0),
        "trainer_logprobs": own.where(mask, 0.0),
        "entropy": entropy.where(mask, 0.0),
        "prompt_length": prompts.lengths,
        **more,
    }
    return Dump(**{k: np.asarray(v) for k, v in fields.items()})


@dataclass
class Toy:
    """A model and what it is asked. end: the token that ends a response, if one does."""

    model: nn.Module
    prompts: Prompts
    generator: torch.Generator
    length: int = 12
    end: int | None = None

    @property
    def own(self) -> Side:
        """The model as it is."""
        return Side(self.model)

    def drawn(self, side: Side | None = None, cache: Any = None) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, recorded log-probs and mask [B,T]."""
        asked = self.prompts, self.length, self.generator, cache, self.end
        return draw(side or self.own, *asked)

    def pair(self, sampler: Side, trainer: Side) -> Dump:
        """Drawn by one and scored by the other."""
        drawn = self.drawn(sampler)
        return self.scored(drawn, score(trainer, self.prompts, drawn[0]))

    def scored(self, drawn: tuple[Tensor, Tensor, Tensor], scores: Tensor) -> Dump:
        """With these scores [B,T,V] of the trainer."""
        tokens, recorded, mask = drawn
        return dumped(tokens, mask, recorded, scores, self.prompts)

    def some(self, share: float) -> Tensor:
        """[B] bool: about so many responses."""
        return torch.rand(len(self.prompts.ids), generator=self.generator) < share
