"""Sampling token by token, with log-probs and entropies.

B sequences, V tokens; D distinct rows of the model: sequences that have begun alike have one.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from nemo_algos.algorithms.shapes import Mask, PerToken
from nemo_algos.engines.local.schema import GenerationSection

BITS = 8


def support(p: Tensor, top_p: float = 1.0, top_k: int | None = None, min_p: float = 0.0) -> Tensor:
    """[...,V] bool: the tokens of p [...,V] that the filters keep, in vLLM's order.

    min_p: at least this share of the likeliest one's probability; top_k: the likeliest so many;
    top_p: of what is left, the fewest likeliest that have this probability together.
    """
    likeliest, order = p.sort(dim=-1, descending=True, stable=True)
    kept = likeliest >= min_p * likeliest[..., :1]
    if top_k is not None:
        kept[..., top_k:] = False
    if top_p < 1:
        left = likeliest.where(kept, 0.0)
        kept &= left.cumsum(-1) - left < top_p * left.sum(-1, keepdim=True)
    return torch.zeros_like(kept).scatter(-1, order, kept)


def pack(kept: Tensor) -> Tensor:
    """[..., V / 8 rounded up] uint8: the sets `kept` [...,V], a bit per token."""
    bits = pad(kept.byte(), (0, -kept.shape[-1] % BITS)).unflatten(-1, (-1, BITS))
    return (bits << torch.arange(BITS, device=kept.device)).sum(-1, dtype=torch.uint8)


def unpack(packed: Tensor, vocabulary: int) -> Tensor:
    """[...,vocabulary] bool of `pack`'s bytes; where no bit is set there was no filter: all True.

    A vocabulary wider than the packed one (a reference's padding) has no more tokens in a set.
    """
    bits = (packed[..., None] >> torch.arange(BITS, device=packed.device)) & 1
    kept = pad(bits.flatten(-2).bool(), (0, vocabulary - BITS * packed.shape[-1]))
    return kept | ~kept.any(-1, keepdim=True)


class Decoded(NamedTuple):
    """tokens [B,S] (pad after the end); mask [B,S] with the end token; nats, 0 off the mask.

    logprobs: as the trainer is to have them; gen_logprobs: of what was drawn from; support: the
    packed sets that the filters kept, [B,S,0] without replay; likeliest, likeliest_logprobs: the
    sampling.top_logprobs likeliest tokens, and their log-probs in the whole distribution.
    """

    tokens: Tensor
    mask: Mask
    logprobs: PerToken
    entropy: PerToken
    gen_logprobs: PerToken
    support: Tensor
    likeliest: Tensor
    likeliest_logprobs: Tensor


class Draw(NamedTuple):
    """token, logprob, entropy, gen_logprob [B]; nats, but for the last of the whole distribution.

    kept [D,V]: the tokens that the filters kept, which gen_logprob is over; None without a filter.
    """

    token: Tensor
    logprob: Tensor
    entropy: PerToken
    gen_logprob: Tensor
    kept: Tensor | None


Rows = tuple[Tensor, Tensor]  # logits [D,V] of the model's rows; row [B]: that of each sequence


def decode(
    first: Rows,
    next_rows: Callable[[Tensor], Rows],
    ends: Iterable[int],
    pad: int,
    sampling: GenerationSection,
    generator: torch.Generator,
) -> Decoded:
    """From the first token's rows until every sequence has drawn one of `ends`.

    next_rows(tokens [B]) appends one token to every sequence. Log-probs are of the whole
    distribution, or, with sampling.support_replay, of what the filters kept; entropies always of
    the whole one.
    """
    logits, row = first
    last = torch.tensor(sorted(ends), device=logits.device)
    alive = torch.ones(len(row), dtype=torch.bool, device=logits.device)
    columns: list[tuple[Tensor, ...]] = []
    replays = sampling.support_replay
    nothing = torch.zeros(len(row), 0, dtype=torch.uint8, device=logits.device)
    likeliest, top = nothing.long(), nothing.float()
    while True:
        scaled = logits / sampling.temperature
        drawn = sample(scaled, row, generator, **sampling.filters)
        if sampling.top_logprobs:
            likeliest, top = _likeliest(scaled, row, sampling.top_logprobs)
        packed = pack(drawn.kept)[row] if replays and drawn.kept is not None else nothing
        logprob = drawn.gen_logprob if replays else drawn.logprob
        token = drawn.token.where(alive, pad)
        drawn_from = (drawn.entropy, drawn.gen_logprob, packed, likeliest, top)
        columns.append((token, alive, logprob, *drawn_from))
        alive = alive & ~torch.isin(drawn.token, last)
        if len(columns) == sampling.max_new_tokens or not alive.any():
            break
        logits, row = next_rows(token)
    stacked = (torch.stack(c, 1) for c in zip(*columns, strict=True))
    tokens, mask, *values, packed, likeliest, top = stacked
    logprobs, entropy, gen_logprobs = (value.where(mask, 0.0) for value in values)
    packed = packed.where(mask[..., None], 0)
    return Decoded(tokens, mask, logprobs, entropy, gen_logprobs, packed, likeliest, top)


def _likeliest(logits: Tensor, row: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Ids and log-probs [B,number] of each sequence's likeliest tokens."""
    top, ids = logits.float().log_softmax(-1).topk(min(number, logits.shape[-1]))
    return ids[row], top[row]


def sample(logits: Tensor, row: Tensor, generator: torch.Generator, **filters: Any) -> Draw:
    """One token per sequence, from logits [D,V] at its row [B]; filters: of `sampling.support`."""
    logp = logits.float().log_softmax(-1)
    p = logp.exp()
    kept = support(p, **filters) if filters else None
    cdf = (p if kept is None else p.where(kept, 0.0)).cumsum(-1).index_select(0, row)
    # 1 - rand lies in (0, 1]: a token of probability 0 is never drawn
    draws = 1 - torch.rand(len(row), 1, device=p.device, generator=generator)
    token = torch.searchsorted(cdf, draws * cdf[:, -1:])[:, 0].clamp(max=p.shape[-1] - 1)
    entropy = -(p * logp.clamp(min=torch.finfo(p.dtype).min)).sum(-1)  # 0 log 0 = 0
    logprob = logp[row, token]
    if kept is None:
        return Draw(token, logprob, entropy[row], logprob, kept)
    mass = logp.where(kept, -torch.inf).logsumexp(-1)
    return Draw(token, logprob, entropy[row], logprob - mass[row], kept)
