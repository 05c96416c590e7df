"""A sampler and a trainer of one world: tokens drawn from the sampler, and both sides' log-probs.

A `Side` says how it differs from a correct one. Both run prompts once and continue from the cache,
so a sampler's edits, masks and positions mean the same for a trainer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache
from worlds import World

from nemo_algos.engines.local.hf import cache_name

GROUP = 4  # responses to a prompt
Edit = Callable[[Any, World], None]  # changes a model in place
Logits = Callable[[Tensor, Tensor, Tensor], Tensor]  # (logits [...,V], prompt, response so far)


def same(logits: Tensor, prompt: Tensor, response: Tensor) -> Tensor:
    """No processor."""
    return logits


@dataclass(frozen=True)
class Side:
    """How one side differs from a correct one.

    edit, config: of the model; logits: what becomes of them; raw: log-probs are recorded before
    that; prompt: what the model reads. window, offset, pads: of the attention, of the response's
    positions (None: the row's padding), whether pads are attended. prefix: the weights that cached
    every `stale`-th prompt. later: the weights after half of the response. draft: the weights that
    propose tokens, which rejection corrects and the draft's log-probs describe, or neither.
    """

    edit: Edit | None = None
    config: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype | None = None
    logits: Logits = same
    raw: bool = False
    prompt: Callable[[list[int]], list[int]] = list
    window: int = 10**6
    offset: int | None = 0
    pads: bool = False
    prefix: Edit | None = None
    stale: int = 1
    later: Edit | None = None
    draft: Edit | None = None
    corrected: bool = True


def build(world: World, side: Side, dtype: torch.dtype, edit: Edit | None = None) -> Any:
    """A copy of the trainer's model with the side's changes. Buffers (RoPE's) stay float32."""
    if side.config:
        config = copy.deepcopy(world.model.config)
        for key, value in side.config.items():
            setattr(config, key, value)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        model.load_state_dict(world.model.state_dict())
    else:
        model = copy.deepcopy(world.model)
    if change := edit or side.edit:
        with torch.no_grad():
            change(model, world)
    for weight in model.parameters():
        weight.data = weight.data.to(side.dtype or dtype)
    return model


class Stream:
    """A model that has read P prompts and goes on with GROUP responses to each, B = P * GROUP."""

    def __init__(self, world: World, side: Side, dtype: torch.dtype, prompts: list[list[int]]):
        self.world, self.side, self.dtype = world, side, dtype
        self.model = build(world, side, dtype)
        rows = [side.prompt(row) for row in prompts]
        width = max(map(len, rows))
        self.ids = torch.tensor([[world.pad] * (width - len(row)) + row for row in rows])
        real = torch.ones(len(rows), width + world.length, dtype=torch.long)
        for i, row in enumerate(rows):
            real[i, : width - len(row)] = 0
        self.positions = (real.cumsum(1) - 1).clamp(min=0)
        gap = width - real[:, :width].sum(1) if side.offset is None else side.offset
        self.positions[:, width:] += torch.as_tensor(gap).reshape(-1, 1)
        at = torch.arange(width + world.length)
        behind = at[:, None] - at[None]
        seen = (behind >= 0) & (behind < side.window)
        self.seen = seen & (real.bool()[:, None] | side.pads) | torch.eye(len(at)).bool()
        self.cache: Any = DynamicCache(config=self.model.config)
        self.read = 0
        self._prefill()

    @torch.no_grad()
    def _prefill(self) -> None:
        if self.side.prefix:
            self._read_stale()
        else:
            self.next(self.ids[:, :-1])
        self.first = self.next(self.ids[:, -1:])[:, -1].repeat_interleave(GROUP, 0)
        self.cache.batch_repeat_interleave(GROUP)
        for name in ("ids", "positions", "seen"):
            setattr(self, name, getattr(self, name).repeat_interleave(GROUP, 0))

    def _read_stale(self) -> None:
        """Every `stale`-th prompt has keys and values of other weights, but for its last token."""
        current = self.model
        self.model = build(self.world, self.side, self.dtype, self.side.prefix)
        self.next(self.ids[:, :-1])
        old, self.cache = self.cache, DynamicCache(config=current.config)
        self.model, self.read = current, 0
        self.next(self.ids[:, :-1])
        rows = slice(None, None, self.side.stale)
        for layer, stale in zip(self.cache.layers, old.layers, strict=True):
            layer.keys[rows], layer.values[rows] = stale.keys[rows], stale.values[rows]

    def use(self, edit: Edit) -> None:
        """Other weights from here on; the cache stays."""
        self.model = build(self.world, self.side, self.dtype, edit)

    @torch.no_grad()
    def next(self, tokens: Tensor) -> Tensor:
        """Logits [B,n,V], float32, behind each of the next tokens [B,n]."""
        start, self.read = self.read, self.read + tokens.shape[1]
        seen = self.seen[: len(tokens), start : self.read, : self.read]
        dtype = self.side.dtype or self.dtype
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
        return self.model(
            input_ids=tokens,
            attention_mask=mask[:, None],
            position_ids=self.positions[: len(tokens), start : self.read],
            use_cache=True,
            **{cache_name(): self.cache},
        ).logits.float()


def generate(
    world: World, side: Side, prompts: list[list[int]], seed: int
) -> tuple[Tensor, Tensor]:
    """Tokens [B,T] drawn one by one, and the log-probs that the sampler records."""
    draws = torch.Generator().manual_seed(seed)
    stream = Stream(world, side, world.sampler, prompts)
    logits, ids, recorded = stream.first, stream.ids[:, :0], []
    draft = (
        Stream(world, replace(side, edit=side.draft), world.sampler, prompts)
        if side.draft
        else None
    )
    guess = draft.first if draft else logits
    for place in range(world.length):
        changed = side.logits(logits, stream.ids, ids).log_softmax(-1)
        token = torch.multinomial(changed.exp(), 1, generator=draws)
        table = logits.log_softmax(-1) if side.raw else changed
        if draft:
            token, table = _speculate(changed, guess.log_softmax(-1), side.corrected, draws)
        recorded.append(table.gather(1, token))
        ids = torch.cat([ids, token], 1)
        if side.later and place == world.length // 2:
            stream.use(side.later)
        if place + 1 < world.length:
            logits = stream.next(token)[:, -1]
            guess = draft.next(token)[:, -1] if draft else logits
    mask = ended(ids, world.end)
    return ids.masked_fill(~mask, world.pad), torch.cat(recorded, 1).masked_fill(~mask, 0)


def ended(tokens: Tensor, end: int) -> Tensor:
    """Mask [B,T] up to the first end-of-response token, that one included."""
    over = (tokens == end).long().cumsum(1) - (tokens == end).long()
    return over == 0


def _speculate(
    target: Tensor, draft: Tensor, corrected: bool, draws: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A token [B,1] that the draft proposed or the target corrected, and the table recorded."""
    token = torch.multinomial(draft.exp(), 1, generator=draws)
    chance = (target - draft).gather(1, token).exp() if corrected else torch.tensor(0.7)
    taken = torch.rand(token.shape, generator=draws) < chance
    rest = (target.exp() - draft.exp()).clamp(min=1e-12) if corrected else target.exp()
    token = torch.where(taken, token, torch.multinomial(rest, 1, generator=draws))
    return token, torch.where(taken, draft, target) if corrected else target


def score(
    world: World, side: Side, prompts: list[list[int]], tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probs of the tokens [B,T] and entropies, nats, as the trainer computes them."""
    logprobs, entropies = [], []
    for start in range(0, len(prompts), 8):
        rows = tokens[start * GROUP : (start + 8) * GROUP]
        stream = Stream(world, side, torch.float32, prompts[start : start + 8])
        logits = torch.cat([stream.first[:, None], stream.next(rows[:, :-1])], 1)
        table = side.logits(logits, stream.ids, rows).log_softmax(-1)
        logprobs.append(table.gather(-1, rows[..., None])[..., 0])
        entropies.append(-(table.exp() * table.clamp(min=-1e4)).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)
