"""Mismatches of known cause, planted in the real logits of a model of transformers.

Each is drawn token by token from a sampler that differs from the trainer in one thing alone, and
scored by the trainer in one forward. B responses of T tokens to prompts of up to L, left-padded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nemo_algos.mismatch.dump import Dump

Edit = Callable[[Tensor], Tensor]
SHAKEN = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "gate_up")


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
        inside = torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, p.cumsum(-1) - p < side.top_p)
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
        out = side.model(input_ids=prompts.ids, attention_mask=shown, position_ids=prompts.positions, use_cache=True)
    else:
        out = side.model(input_ids=prompts.ids[:, -1:], attention_mask=shown, position_ids=at, past_key_values=cache, use_cache=True)
    columns, alive = [], torch.ones(len(shown), dtype=torch.bool)
    for _ in range(length):
        drawn, recorded = logprobs(out.logits[:, -1], side)
        token = torch.multinomial(drawn.exp(), 1, generator=generator)
        columns.append((token[:, 0], recorded.gather(1, token)[:, 0], alive))
        if end is not None:
            alive = alive & (token[:, 0] != end)
        shown, at = torch.cat((shown, torch.ones_like(token)), 1), at + 1
        out = side.model(input_ids=token, attention_mask=shown, position_ids=at, past_key_values=out.past_key_values, use_cache=True)
    tokens, recorded, mask = (torch.stack(c, 1) for c in zip(*columns, strict=True))
    return tokens, recorded, mask


@torch.no_grad()
def score(side: Side, prompts: Prompts, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
    """[B,T,V] log-probs of every token by one forward."""
    ids = torch.cat((prompts.ids, tokens), 1)
    shown = torch.cat((prompts.shown.long(), torch.ones_like(tokens)), 1)
    if positions is None:
        positions = (shown.cumsum(1) - 1).clamp(min=0)
    logits = side.model(input_ids=ids, attention_mask=shown, position_ids=positions).logits
    return logprobs(logits[:, prompts.ids.shape[1] - 1 : -1], side)[0]


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


@contextmanager
def shaken(module: nn.Module, edit: Edit, names: tuple[str, ...] = SHAKEN) -> Iterator[None]:
    """Within, the matrices of these names are what `edit` makes of them."""
    held = {n: p.data for n, p in module.named_parameters() if p.dim() >= 2 and any(x in n for x in names)}
    assert held
    try:
        for name, parameter in module.named_parameters():
            if name in held:
                parameter.data = edit(held[name])
        yield
    finally:
        for name, parameter in module.named_parameters():
            if name in held:
                parameter.data = held[name]


def changed(model: nn.Module, edit: Edit, names: tuple[str, ...] = SHAKEN) -> nn.Module:
    """A copy whose matrices of these names are what `edit` makes of them."""
    copied = copy.deepcopy(model)
    for name, parameter in copied.named_parameters():
        if parameter.dim() >= 2 and any(x in name for x in names):
            parameter.data = edit(parameter.data)
    return copied


def trained(
    model: nn.Module, prompts: Prompts, updates: int, rate: float, generator: torch.Generator, parameters: Any = None, end: int | None = None
) -> nn.Module:
    """A copy after so many policy-gradient updates (Adam) on its own samples and random rewards."""
    copied = copy.deepcopy(model)
    learning = [p for n, p in copied.named_parameters() if parameters is None or parameters in n]
    optimizer = torch.optim.AdamW(learning, rate, weight_decay=0.0)
    for _ in range(updates):
        rows = torch.randperm(len(prompts.ids), generator=generator)[:64]
        some = Prompts(prompts.ids[rows], prompts.shown[rows])
        tokens, _, mask = draw(Side(copied), some, 12, generator, end=end)
        # a reward that can be learned: a token id by its residue
        reward = ((tokens % 3 == 0) & mask).float().sum(1) / mask.sum(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-3)
        ids, shown = torch.cat((some.ids, tokens), 1), torch.cat((some.shown, mask), 1).long()
        logits = copied(input_ids=ids, attention_mask=shown, position_ids=(shown.cumsum(1) - 1).clamp(min=0)).logits
        own = logits[:, some.ids.shape[1] - 1 : -1].log_softmax(-1).gather(2, tokens[..., None])[..., 0]
        loss = -(own * advantage[:, None])[mask].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return copied


def e4m3(weight: Tensor) -> Tensor:
    """Rounded to FP8 with a scale per row."""
    scale = weight.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return (weight / scale).to(torch.float8_e4m3fn).float() * scale


def bf16(weight: Tensor) -> Tensor:
    return weight.bfloat16().float()


def int4(weight: Tensor) -> Tensor:
    scale = weight.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 7
    return (weight / scale).round() * scale


def noisy(size: float, generator: torch.Generator) -> Edit:
    return lambda w: w * (1 + size * torch.randn(w.shape, generator=generator))


class Flips(nn.Module):
    """An MLP that sends a share of tokens to another expert."""

    def __init__(self, own: nn.Module, other: nn.Module, share: float, generator: torch.Generator) -> None:
        super().__init__()
        self.own, self.other, self.share, self.generator = own, other, share, generator

    def forward(self, x: Tensor) -> Tensor:
        flipped = torch.rand(x.shape[:-1], generator=self.generator) < self.share
        return torch.where(flipped[..., None], self.other(x), self.own(x))


@dataclass
class Planter:
    """Plants causes in one model. prompts: to draw from; end: the token that ends a response."""

    model: nn.Module
    prompts: Prompts
    generator: torch.Generator
    length: int = 12
    end: int | None = None
    older: Any = None

    def plant(self, cause: str, strength: int, variant: int = 0) -> Dump:
        """strength 0, 1, 2: weak, middling, strong."""
        return getattr(self, cause)(strength, variant)

    def pair(self, sampler: Side, trainer: Side, **more: Any) -> Dump:
        tokens, recorded, mask = draw(sampler, self.prompts, self.length, self.generator, end=self.end)
        return dumped(tokens, mask, recorded, score(trainer, self.prompts, tokens), self.prompts, **more)

    @property
    def own(self) -> Side:
        return Side(self.model)

    def clean(self, strength: int, variant: int) -> Dump:
        if variant % 3 == 0:
            return self.pair(self.own, self.own)
        tokens, recorded, mask = draw(self.own, self.prompts, self.length, self.generator, end=self.end)
        if variant % 3 == 1:
            double = Side(copy.deepcopy(self.model).double())
            return dumped(tokens, mask, recorded, score(double, self.prompts, tokens), self.prompts)
        rows = [Prompts(self.prompts.ids[i : i + 7], self.prompts.shown[i : i + 7]) for i in range(0, len(tokens), 7)]
        parts = [score(self.own, r, tokens[i * 7 : i * 7 + 7]) for i, r in enumerate(rows)]
        return dumped(tokens, mask, recorded, torch.cat(parts), self.prompts)

    def temperature(self, strength: int, variant: int) -> Dump:
        value = (0.95, 0.8, 0.6)[strength] if variant % 2 == 0 else (1.05, 1.3, 1.6)[strength]
        if variant == 2:
            return self.pair(self.own, replace(self.own, temperature=value))
        return self.pair(replace(self.own, temperature=value), self.own)

    def truncation(self, strength: int, variant: int) -> Dump:
        limits = {"top_p": (0.98, 0.9, 0.7)[strength]} if variant % 2 == 0 else {"top_k": (10, 5, 2)[strength]}
        return self.pair(replace(self.own, **limits), self.own)

    def old_weights(self, strength: int, variant: int) -> Dump:
        """The trainer has gone on by 1, 4, 16 updates; variant 1: rows of several ages."""
        updates = (1, 4, 16)[strength]
        newer = trained(self.model, self.prompts, updates, 3e-4, self.generator, end=self.end)
        if variant % 2 == 0:
            return self.pair(self.own, Side(newer))
        behind, fresh = self.pair(self.own, Side(newer)), self.pair(Side(newer), Side(newer))
        return mixed(fresh, behind, np.arange(len(behind.tokens)) % 2 == 1)

    def shift(self, strength: int, variant: int) -> Dump:
        share = (0.15, 0.5, 1.0)[strength]
        made = self.pair(self.own, self.own)
        moved = np.roll(made.sampler_logprobs, (1, -1)[variant % 2], 1)
        rows = self.chosen(share)
        values = np.where(rows[:, None] & made.mask, moved, made.sampler_logprobs)
        return replace(made, sampler_logprobs=values)

    def prefix(self, strength: int, variant: int) -> Dump:
        """Wrong pads are seen by the trainer, or (variant 1) it prepends another token."""
        tokens, recorded, mask = draw(self.own, self.prompts, self.length, self.generator, end=self.end)
        p = self.prompts
        if variant % 2 == 0:
            seen = p.shown | (p.ids.shape[1] - torch.arange(p.ids.shape[1]) <= p.lengths[:, None] + strength * 2 + 1)
        else:
            front = torch.full((len(p.ids), (1, 2, 4)[strength]), int(p.ids[0, -1]))
            p, seen = Prompts(torch.cat((front, p.ids), 1), p.shown), torch.cat((front > -1, p.shown), 1)
        return dumped(tokens, mask, recorded, score(self.own, Prompts(p.ids, seen), tokens), self.prompts)

    def precision(self, strength: int, variant: int) -> Dump:
        if variant % 2 == 0:
            edit = (bf16, e4m3, lambda w: (w / w.abs().amax() * 57344).to(torch.float8_e5m2).float() * w.abs().amax() / 57344)[strength]
            return self.pair(Side(changed(self.model, edit), half=True), self.own)
        low = copy.deepcopy(self.model).bfloat16()
        if strength:
            low = changed(low, lambda w: e4m3(w.float()).bfloat16())
        return self.pair(Side(low), self.own) if strength < 2 else self.pair(self.own, Side(low))

    def bad_layer(self, strength: int, variant: int) -> Dump:
        """A layer with noise of 0.1, 0.4, 1; variant 1: a module left out of the quantised ones."""
        layer = "layers.1." if variant % 2 == 0 else "layers.0.mlp"
        size = (0.1, 0.4, 1.0)[strength]
        return self.pair(Side(changed(self.model, noisy(size, self.generator), (layer,))), self.own)

    def packing(self, strength: int, variant: int) -> Dump:
        """The sequence before in a pack is seen; variant 1: positions are stretched."""
        tokens, recorded, mask = draw(self.own, self.prompts, self.length, self.generator, end=self.end)
        p = self.prompts
        if variant % 2:
            factor = (1.05, 1.25, 2.0)[strength]
            shown = torch.cat((p.shown.long(), torch.ones_like(tokens)), 1)
            positions = (shown.cumsum(1) - 1).clamp(min=0).float() * factor
            return dumped(tokens, mask, recorded, score(self.own, p, tokens, positions), p)
        whole, seen = torch.cat((p.ids, tokens), 1).roll(1, 0), torch.cat((p.shown, mask), 1).roll(1, 0)
        first = torch.arange(len(tokens)) % (2, 4, 8)[strength] == 0
        packed = Prompts(torch.cat((whole, p.ids), 1), torch.cat((seen & ~first[:, None], p.shown), 1))
        return dumped(tokens, mask, recorded, score(self.own, packed, tokens), p)

    def stale_cache(self, strength: int, variant: int) -> Dump:
        """Half of the prompts (in groups of 8 rows) have keys and values of older weights."""
        if variant % 2 == 0:
            old = changed(self.model, noisy((0.02, 0.1, 0.3)[strength], self.generator))
        else:
            old = trained(self.model, self.prompts, (2, 6, 16)[strength], 5e-4, self.generator, end=self.end)
        p, drawn = self.prompts, []
        for model in (self.model, old):
            with torch.no_grad():
                cut = Prompts(p.ids[:, :-1], p.shown[:, :-1])
                out = model(input_ids=cut.ids, attention_mask=cut.shown.long(), position_ids=cut.positions, use_cache=True)
            drawn.append(draw(self.own, p, self.length, self.generator, out.past_key_values, self.end))
        stale = torch.from_numpy(np.isin(np.arange(len(p.ids)) // 8, self.generator_choice(len(p.ids) // 8, 2)))
        tokens, recorded, mask = (torch.where(stale[:, None], b, a) for a, b in zip(*drawn, strict=True))
        return dumped(tokens, mask, recorded, score(self.own, p, tokens), p)

    def vocabulary(self, strength: int, variant: int) -> Dump:
        """Padding of the vocabulary in the softmax; variant 1: ids that two tokenizers exchange."""
        if variant % 2 == 0:
            counts = (16, 128, 1024)[strength]
            padded = replace(self.own, padding=counts)
            return self.pair(self.own, padded) if variant == 0 else self.pair(padded, self.own)
        tokens, recorded, mask = draw(self.own, self.prompts, self.length, self.generator, end=self.end)
        scores = score(self.own, self.prompts, tokens)
        ids = tokens[mask].unique()
        ids = ids[torch.randperm(len(ids), generator=self.generator)][: (2, 4, 8)[strength]]
        order = torch.arange(scores.shape[-1])
        order[ids] = ids.roll(1)
        return dumped(tokens, mask, recorded, scores[..., order], self.prompts)

    def routing(self, strength: int, variant: int) -> Dump:
        flipped = copy.deepcopy(self.model)
        layers = flipped.model.layers
        i = variant % len(layers)
        layers[i].mlp = Flips(layers[i].mlp, layers[i - 1].mlp, (0.01, 0.05, 0.1)[strength], self.generator)
        return self.pair(Side(flipped), self.own)

    def lora(self, strength: int, variant: int) -> Dump:
        """An adapter of rank 4 that is merged by a wrong factor; variant 1: not at all."""
        tuned = trained(self.model, self.prompts, 10, 1e-3, self.generator, parameters="_proj", end=self.end)
        size = (0.3, 1.0, 2.0)[strength]
        halves: list[nn.Module] = []
        for factor in (1.0, (2.0, 0.0)[variant % 2]):
            made = copy.deepcopy(self.model)
            moved = dict(tuned.named_parameters())
            for name, parameter in made.named_parameters():
                if "_proj" in name and parameter.dim() > 1:
                    u, s, v = torch.linalg.svd((moved[name] - parameter).detach(), full_matrices=False)
                    parameter.data = parameter.data + size * factor * (u[..., :4] * s[..., None, :4]) @ v[..., :4, :]
            halves.append(made)
        return self.pair(Side(halves[1]), Side(halves[0]))

    def chosen(self, share: float) -> np.ndarray:
        return (torch.rand(len(self.prompts.ids), generator=self.generator) < share).numpy()

    def generator_choice(self, of: int, every: int) -> np.ndarray:
        return torch.randperm(of, generator=self.generator)[: of // every].numpy()


CAUSES = ("temperature", "truncation", "old_weights", "shift", "prefix", "precision", "bad_layer", "packing", "stale_cache", "vocabulary", "routing", "lora")


def mixed(a: Dump, b: Dump, second: np.ndarray) -> Dump:
    """Rows of b where `second`, of weights a version older."""
    fields = {k: v for k, v in vars(a).items() if isinstance(v, np.ndarray)}
    rows = {k: np.where(second.reshape(-1, *(1,) * (v.ndim - 1)), getattr(b, k), v) for k, v in fields.items()}
    return replace(a, **rows, weights_version=np.where(second, 6, 7))


def countdown(rows: int = 160, seed: int = 0, length: int = 12) -> Planter:
    """The embedded engine's model, in groups of 8 rows of a prompt."""
    import random

    from transformers import LlamaConfig, LlamaForCausalLM

    from nemo_algos.data import countdown as task
    from nemo_algos.local import tiny
    from nemo_algos.local.schema import Shape
    from nemo_algos.local.tiny_policy import warm_started

    taught = warm_started(task.Rules(), 0, lambda share: None)
    model = LlamaForCausalLM(LlamaConfig(**tiny.hf_config(Shape()))).eval()
    model.load_state_dict(tiny.hf_state(taught), strict=False)
    rng = random.Random(seed)
    asked = []
    for _ in range(rows // 8):
        puzzle, _ = task.sample(rng, task.Rules(rng.choice((2, 3, 4))))
        asked += [task.tokens_of(f"{puzzle} :")[:-1]] * 8
    return Planter(model, padded(asked, task.PAD), torch.Generator().manual_seed(seed), length, task.EOS)


def padded(asked: list[list[int]], pad: int) -> Prompts:
    width = max(map(len, asked))
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in asked])
    shown = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in asked])
    return Prompts(ids, shown)


def synthetic(kind: str = "llama", rows: int = 160, seed: int = 0, length: int = 24, steps: int = 150) -> Planter:
    """A small model of transformers, taught a little on sums of its own two tokens before."""
    import transformers as hf

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": kind == "qwen",
    }
    if kind == "mixtral":
        config = hf.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)
        config._experts_implementation = "eager"  # grouped_mm knows no float64
        model = hf.MixtralForCausalLM(config)
    elif kind == "qwen":
        model = hf.Qwen2ForCausalLM(hf.Qwen2Config(**sizes))
    else:
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes))
    generator = torch.Generator().manual_seed(seed)

    def text(n: int, size: int) -> Tensor:
        ids = torch.randint(4, 96, (n, 2), generator=generator)
        while ids.shape[1] < size:
            likely = (ids[:, -1] * 3 + ids[:, -2] % 2) % 92 + 4
            spread = (torch.randn(n, generator=generator) * 1.5).round().long()
            other = torch.randint(4, 96, (n,), generator=generator)
            new = torch.where(torch.rand(n, generator=generator) < 0.1, other, (likely + spread - 4) % 92 + 4)
            ids = torch.cat((ids, new[:, None]), 1)
        return ids

    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(steps):
        ids = text(32, 32)
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    asked = []
    for i in range(rows // 8):
        n = int(torch.randint(4, 17, (1,), generator=generator))
        asked += [text(1, n)[0].tolist()] * 8
    return Planter(model.eval(), padded(asked, 0), generator, length)
