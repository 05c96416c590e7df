"""Sampling token by token, with log-probs and entropies. B sequences, V tokens."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from nemo_algos.engines.local.schema import GenerationSection


class Decoded(NamedTuple):
    """tokens [B,S] (pad after the end); mask [B,S] with the end token; nats, 0 off the mask."""

    tokens: Tensor
    mask: Tensor
    logprobs: Tensor
    entropy: Tensor


def decode(
    logits: Tensor,
    next_logits: Callable[[Tensor], Tensor],
    ends: Iterable[int],
    pad: int,
    sampling: GenerationSection,
    generator: torch.Generator,
) -> Decoded:
    """From the first token's logits [B,V] until every sequence has drawn one of `ends`.

    next_logits(tokens [B]) -> [B,V] appends one token to every sequence. sampling.top_p: draw from
    the fewest tokens that have this probability together; log-probs and entropies stay those of the
    whole distribution.
    """
    last = torch.tensor(sorted(ends), device=logits.device)
    alive = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    columns: list[tuple[Tensor, ...]] = []
    while True:
        token, logprob, entropy = sample(logits / sampling.temperature, generator, sampling.top_p)
        columns.append((token.where(alive, pad), alive, logprob, entropy))
        alive = alive & ~torch.isin(token, last)
        if len(columns) == sampling.max_new_tokens or not alive.any():
            break
        logits = next_logits(columns[-1][0])
    tokens, mask, logprobs, entropy = (torch.stack(c, 1) for c in zip(*columns, strict=True))
    return Decoded(tokens, mask, logprobs.where(mask, 0.0), entropy.where(mask, 0.0))


def sample(
    logits: Tensor, generator: torch.Generator, top_p: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """One token per row of logits [B,V], its log-prob, and the row's entropy, nats."""
    logp = logits.float().log_softmax(-1)
    p = logp.exp()
    cdf = (_nucleus(p, top_p) if top_p < 1 else p).cumsum(-1)
    # 1 - rand lies in (0, 1]: a token of probability 0 is never drawn
    draws = 1 - torch.rand(len(p), 1, device=p.device, generator=generator)
    token = (cdf < draws * cdf[:, -1:]).sum(-1).clamp(max=p.shape[-1] - 1)
    entropy = -(p * logp.clamp(min=torch.finfo(p.dtype).min)).sum(-1)  # 0 log 0 = 0
    return token, logp.gather(-1, token[:, None])[:, 0], entropy


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """p [B,V], 0 where likelier tokens reach top_p without it."""
    sorted_p, order = p.sort(-1, descending=True)
    before = sorted_p.cumsum(-1) - sorted_p
    kept = torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, before < top_p)
    return p.where(kept, 0.0)
