"""flash-attn 2's functions on a CPU: DTensor's sequence packing asks for them by name."""

from itertools import pairwise
from typing import Any

from torch import Tensor, cat, stack, zeros_like
from torch.nn.functional import scaled_dot_product_attention

__version__ = "2.8.1"


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool) -> Tensor:
    """[T,heads,D] each -> [T,heads,D], one sequence."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True)
    return out.transpose(0, 1)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    **_: Any,
) -> Tensor:
    """[B,T,heads,D] each -> [B,T,heads,D]."""
    rows = zip(q, k, v, strict=True)
    return stack([_attention(*row, softmax_scale, causal) for row in rows])


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    **_: Any,
) -> Tensor:
    """[T,heads,D] each, sequences one after another -> [T,heads,D]; 0 behind the last one."""
    bounds = cu_seqlens_q.tolist()
    spans = [slice(a, b) for a, b in pairwise(bounds) if b > a]
    parts = [_attention(q[s], k[s], v[s], softmax_scale, causal) for s in spans]
    return cat([*parts, zeros_like(q[bounds[-1] :])])


def flash_attn_with_kvcache(*_: Any, **__: Any) -> Tensor:
    """Imported by transformers, for generation."""
    raise NotImplementedError
