"""The tokens that a sampler's filters keep (its support): which they are, and a set in V / 8 bytes.

Replayed by `entropy.token_logprobs_and_entropy(kept=...)`. V tokens of the vocabulary.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

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
