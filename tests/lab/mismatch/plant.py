"""Mismatches of known cause, planted in the real logits of a model of transformers.

Each is drawn token by token from a sampler that differs from the trainer in one thing alone, and
scored by the trainer in one forward. k: the strength, 0 to 2.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from sides import Prompts, Side, Toy, score
from torch import Tensor, nn
from weights import Flips, adapted, bf16, changed, e4m3, e5m2, noisy, trained

from nemo_algos.engines.mismatch.dump import Dump


def tempered_sampler(t: Toy, k: int) -> Dump:
    return t.pair(replace(t.own, temperature=(0.95, 0.8, 0.6)[k]), t.own)


def hot_sampler(t: Toy, k: int) -> Dump:
    return t.pair(replace(t.own, temperature=(1.05, 1.3, 1.6)[k]), t.own)


def tempered_trainer(t: Toy, k: int) -> Dump:
    return t.pair(t.own, replace(t.own, temperature=(0.9, 0.7, 1.5)[k]))


def top_p(t: Toy, k: int) -> Dump:
    return t.pair(replace(t.own, top_p=(0.98, 0.9, 0.7)[k]), t.own)


def top_k(t: Toy, k: int) -> Dump:
    return t.pair(replace(t.own, top_k=(10, 5, 2)[k]), t.own)


def top_p_and_top_k(t: Toy, k: int) -> Dump:
    return t.pair(replace(t.own, top_p=(0.99, 0.95, 0.8)[k], top_k=(30, 20, 10)[k]), t.own)


def old_weights(t: Toy, k: int) -> Dump:
    return t.pair(t.own, Side(trained(t, (1, 4, 16)[k])))


def half_old_weights(t: Toy, k: int) -> Dump:
    newer = Side(trained(t, (1, 4, 16)[k]))
    fresh, behind = t.pair(newer, newer), t.pair(t.own, newer)
    return mixed(fresh, behind, t.some(0.5).numpy(), versions=(7, 6))


def ages(t: Toy, k: int) -> Dump:
    """Of one to three updates times 1, 2, 4 behind the trainer."""
    steps, step = [t.model], (1, 2, 4)[k]
    for _ in range(3):
        steps.append(trained(replace(t, model=steps[-1]), step))
    one, two, three = (t.pair(Side(model), Side(steps[3])) for model in steps[:3])
    which = torch.randint(0, 3, (len(one.tokens),), generator=t.generator).numpy()
    made = mixed(mixed(one, two, which == 1), three, which == 2)
    return replace(made, weights_version=which)


def mixed(a: Dump, b: Dump, second: np.ndarray, versions: tuple[int, int] | None = None) -> Dump:
    """Rows of b where `second`; versions: of a and b."""
    rows = {}
    for name, values in a.arrays().items():
        where = second.reshape(-1, *(1,) * (values.ndim - 1))
        rows[name] = np.where(where, getattr(b, name), values)
    made = replace(a, **rows)
    return replace(made, weights_version=np.where(second, *versions[::-1])) if versions else made


def shifted(t: Toy, k: int, by: int = 1) -> Dump:
    made, rows = t.pair(t.own, t.own), t.some((0.15, 0.5, 1.0)[k]).numpy()[:, None]
    moved = np.roll(made.sampler_logprobs, by, 1)
    values = np.where(rows & made.mask, moved, made.sampler_logprobs)
    return replace(made, sampler_logprobs=values)


def shifted_back(t: Toy, k: int) -> Dump:
    return shifted(t, k, -1)


def other_template(t: Toy, k: int) -> Dump:
    """The trainer reads so many more tokens right before the response."""
    p, drawn = t.prompts, t.drawn()
    more = torch.full((len(p.ids), k + 1), 5)
    longer = Prompts(torch.cat((p.ids, more), 1), torch.cat((p.shown, more > 0), 1))
    return t.scored(drawn, score(t.own, longer, drawn[0]))


def seen_pads(t: Toy, k: int) -> Dump:
    """The trainer sees so many of the pads, and counts positions with them."""
    p, drawn = t.prompts, t.drawn()
    width = p.ids.shape[1]
    from_right = width - torch.arange(width)
    seen = p.shown | (from_right <= p.lengths[:, None] + 2 * k + 1)
    return t.scored(drawn, score(t.own, Prompts(p.ids, seen), drawn[0]))


def more_bos(t: Toy, k: int) -> Dump:
    """The trainer's prompts begin with so many more of a token."""
    p, drawn = t.prompts, t.drawn()
    front = torch.full((len(p.ids), (1, 2, 4)[k]), int(p.ids[0, -1]))
    longer = Prompts(torch.cat((front, p.ids), 1), torch.cat((front > -1, p.shown), 1))
    return t.scored(drawn, score(t.own, longer, drawn[0]))


def no_bos(t: Toy, k: int) -> Dump:
    """The trainer's prompts lack their first k + 1 tokens."""
    p, drawn = t.prompts, t.drawn()
    shown = p.shown & (p.shown.cumsum(1) > k + 1)
    return t.scored(drawn, score(t.own, Prompts(p.ids, shown), drawn[0]))


def rounded_sampler(t: Toy, k: int) -> Dump:
    return t.pair(Side(changed(t.model, (bf16, e4m3, e5m2)[k]), half=True), t.own)


def bf16_sampler(t: Toy, k: int) -> Dump:
    """All in bf16, then with weights in FP8, in each of its formats."""
    low = copy.deepcopy(t.model).bfloat16()
    edit = (None, e4m3, e5m2)[k]
    low = changed(low, lambda w: edit(w.float()).bfloat16()) if edit else low
    return t.pair(Side(low), t.own)


def rounded_trainer(t: Toy, k: int) -> Dump:
    return t.pair(t.own, Side(changed(t.model, (bf16, e4m3, e5m2)[k]), half=True))


def noisy_layer(t: Toy, k: int) -> Dump:
    return t.pair(Side(changed(t.model, noisy((0.1, 0.4, 1)[k], t.generator), ("s.1.",))), t.own)


def noisy_module(t: Toy, k: int) -> Dump:
    edit = noisy((0.1, 0.4, 1.0)[k], t.generator)
    return t.pair(Side(changed(t.model, edit, ("layers.0.mlp",))), t.own)


def scaled_module(t: Toy, k: int) -> Dump:
    """What an attention adds, times .8, .5, 0: a scale that one engine does not apply."""
    return t.pair(Side(changed(t.model, lambda w: w * (0.8, 0.5, 0)[k], ("0.self_attn.o",))), t.own)


def leaking_pack(t: Toy, k: int) -> Dump:
    """In packs of 2, 4, 8 the trainer sees the response before."""
    p, drawn = t.prompts, t.drawn()
    before = torch.cat((p.ids, drawn[0]), 1).roll(1, 0)
    seen = torch.cat((p.shown, drawn[2]), 1).roll(1, 0)
    first = torch.arange(len(seen)) % (2, 4, 8)[k] == 0
    shown = torch.cat((seen & ~first[:, None], p.shown), 1)
    return t.scored(drawn, score(t.own, Prompts(torch.cat((before, p.ids), 1), shown), drawn[0]))


def stretched_positions(t: Toy, k: int) -> Dump:
    drawn = t.drawn()
    at = positions(t, drawn[0]).float() * (1.05, 1.25, 2.0)[k]
    return t.scored(drawn, score(t.own, t.prompts, drawn[0], at))


def jump_in_positions(t: Toy, k: int) -> Dump:
    """From the middle of the responses on, by 3, 8, 20."""
    drawn = t.drawn()
    at = positions(t, drawn[0])
    at[:, t.prompts.ids.shape[1] + t.length // 2 :] += (3, 8, 20)[k]
    return t.scored(drawn, score(t.own, t.prompts, drawn[0], at))


def positions(t: Toy, tokens: Tensor) -> Tensor:
    shown = torch.cat((t.prompts.shown.long(), torch.ones_like(tokens)), 1)
    return (shown.cumsum(1) - 1).clamp(min=0)


def cached_by(t: Toy, old: nn.Module, stale: Tensor) -> Dump:
    """Stale responses [B] are drawn with the old weights' keys and values of the prompt."""
    p, drawn = t.prompts, []
    cut = Prompts(p.ids[:, :-1], p.shown[:, :-1])
    for model in (t.model, old):
        with torch.no_grad():
            inputs = {"input_ids": cut.ids, "attention_mask": cut.shown.long()}
            out = model(**inputs, position_ids=cut.positions, use_cache=True)
        drawn.append(t.drawn(cache=out.past_key_values))
    both = [torch.where(stale[:, None], b, a) for a, b in zip(*drawn, strict=True)]
    return t.scored((both[0], both[1], both[2]), score(t.own, p, both[0]))


def stale_prompts(t: Toy, k: int) -> Dump:
    old = changed(t.model, noisy((0.02, 0.1, 0.3)[k], t.generator))
    return cached_by(t, old, half_of_prompts(t))


def stale_after_training(t: Toy, k: int) -> Dump:
    return cached_by(t, trained(t, (2, 6, 16)[k], 5e-4), half_of_prompts(t))


def stale_responses(t: Toy, k: int) -> Dump:
    return cached_by(t, trained(t, (2, 6, 16)[k], 5e-4), t.some(0.3))


def half_of_prompts(t: Toy) -> Tensor:
    """Prompts have eight responses each, one after the other."""
    of = len(t.prompts.ids) // 8
    chosen = torch.randperm(of, generator=t.generator)[: of // 2]
    return torch.isin(torch.arange(len(t.prompts.ids)) // 8, chosen)


def padded_trainer(t: Toy, k: int) -> Dump:
    return t.pair(t.own, replace(t.own, padding=(16, 128, 1024)[k]))


def exchanged_ids(t: Toy, k: int) -> Dump:
    """The trainer reads the log-probs of other ids."""
    drawn = t.drawn()
    return t.scored(drawn, score(t.own, t.prompts, drawn[0])[..., exchange(t, drawn, k)])


def other_tokenizer(t: Toy, k: int) -> Dump:
    """The same, and the trainer is shown the other ids too."""
    drawn, p = t.drawn(), t.prompts
    order = exchange(t, drawn, k)
    scores = score(t.own, Prompts(order[p.ids], p.shown), order[drawn[0]])
    return t.scored(drawn, scores[..., order])


def exchange(t: Toy, drawn: tuple[Tensor, ...], k: int) -> Tensor:
    ids = drawn[0][drawn[2]].unique()
    ids = ids[torch.randperm(len(ids), generator=t.generator)][: (2, 4, 8)[k]]
    order = torch.arange(int(t.model.config.vocab_size))
    order[ids] = ids.roll(1)
    return order


def flips(t: Toy, k: int, layer: int = 0) -> Toy:
    flipped = copy.deepcopy(t.model)
    layers, share = flipped.model.layers, (0.01, 0.05, 0.1)[k]
    layers[layer].mlp = Flips(layers[layer].mlp, layers[layer - 1].mlp, share, t.generator)
    return replace(t, model=flipped)


def flipped_sampler(t: Toy, k: int) -> Dump:
    return t.pair(flips(t, k).own, t.own)


def flipped_last_layer(t: Toy, k: int) -> Dump:
    return t.pair(flips(t, k, len(t.model.model.layers) - 1).own, t.own)


def flipped_trainer(t: Toy, k: int) -> Dump:
    return t.pair(t.own, flips(t, k).own)


def merged(t: Toy, k: int, factor: float) -> Dump:
    tuned = trained(t, 10, 1e-3, "_proj")
    size = (0.3, 1.0, 2.0)[k]
    return t.pair(Side(adapted(t.model, tuned, size * factor)), Side(adapted(t.model, tuned, size)))


def merged_twice(t: Toy, k: int) -> Dump:
    return merged(t, k, 2.0)


def not_merged(t: Toy, k: int) -> Dump:
    return merged(t, k, 0.0)


def growing_adapter(t: Toy, k: int) -> Dump:
    """Three versions of an adapter, none of them merged."""
    tuned = trained(t, 10, 1e-3, "_proj")
    sizes = [(0.3, 1.0, 2.0)[k] * share for share in (0.25, 0.5, 1.0)]
    dumps = [t.pair(t.own, Side(adapted(t.model, tuned, size))) for size in sizes]
    which = torch.randint(0, 3, (len(dumps[0].tokens),), generator=t.generator).numpy()
    made = mixed(mixed(dumps[0], dumps[1], which == 1), dumps[2], which == 2)
    return replace(made, weights_version=which)


def clean(t: Toy, k: int) -> Dump:
    """By a cache or not, in float64, in other batches."""
    drawn, p = t.drawn(), t.prompts
    if k == 0:
        return t.scored(drawn, score(t.own, p, drawn[0]))
    if k == 1:
        return t.scored(drawn, score(Side(copy.deepcopy(t.model).double()), p, drawn[0]))
    parts = [slice(i, i + 7) for i in range(0, len(p.ids), 7)]
    scores = [score(t.own, Prompts(p.ids[x], p.shown[x]), drawn[0][x]) for x in parts]
    return t.scored(drawn, torch.cat(scores))


CASES: dict[str, tuple[Callable[[Toy, int], Dump], ...]] = {
    "temperature": (tempered_sampler, hot_sampler, tempered_trainer),
    "truncation": (top_p, top_k, top_p_and_top_k),
    "old_weights": (old_weights, half_old_weights, ages),
    "shift": (shifted, shifted_back, other_template),
    "prefix": (seen_pads, more_bos, no_bos),
    "precision": (rounded_sampler, bf16_sampler, rounded_trainer),
    "bad_layer": (noisy_layer, noisy_module, scaled_module),
    "packing": (leaking_pack, stretched_positions, jump_in_positions),
    "stale_cache": (stale_prompts, stale_after_training, stale_responses),
    "vocabulary": (padded_trainer, exchanged_ids, other_tokenizer),
    "routing": (flipped_sampler, flipped_last_layer, flipped_trainer),
    "lora": (merged_twice, not_merged, growing_adapter),
}
