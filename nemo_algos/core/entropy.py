"""Log-probs of given tokens and the exact entropy of their distributions, from logits.

Chunked over positions: whatever the dtype of the logits, arithmetic is float32, and no float32
copy of [N,V] exists at any time. N positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 1 << 22  # float32 numbers of a chunk of logits: 16 MiB


def token_logprobs_and_entropy(
    logits: Tensor, tokens: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """log p(token) and H(p) = -sum_v p_v log p_v with p = softmax(logits / temperature), in nats.

    logits [..., V], any float dtype; tokens [...] -> two float32 [...], differentiable (float64
    where the logits are). Extra memory: one chunk in the forward, and in the backward one chunk
    and the gradient of the logits in their own dtype.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    logprobs, entropy = _FromLogits.apply(flat, tokens.reshape(-1), temperature)
    return logprobs.view(tokens.shape), entropy.view(tokens.shape)


def _chunks(logits: Tensor) -> list[slice]:
    rows = max(1, CHUNK // logits.shape[1])
    return [slice(i, i + rows) for i in range(0, len(logits), rows)]


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    wide = logits.double() if logits.dtype == torch.float64 else logits.float()
    return wide / temperature


class _FromLogits(torch.autograd.Function):
    """d log p(a) / dx_v = 1[v = a] - p_v;  dH / dx_v = -p_v (log p_v + H)."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, tokens: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        logprobs = torch.empty(len(logits), dtype=dtype, device=logits.device)
        entropy, log_z = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for c in _chunks(logits):
            x = _scaled(logits[c], temperature)
            log_z[c] = x.logsumexp(-1)
            logprobs[c] = x.gather(-1, tokens[c, None])[:, 0] - log_z[c]
            x -= log_z[c, None]
            # 0 log 0 = 0 where a logit is -inf
            entropy[c] = -(x.exp() * x.clamp(min=torch.finfo(dtype).min)).sum(-1)
        ctx.save_for_backward(logits, tokens, log_z, entropy)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor, None, None]:
        grad_logprobs, grad_entropy = grad_outputs
        logits, tokens, log_z, entropy = ctx.saved_tensors
        grad = torch.empty_like(logits)
        for c in _chunks(logits):
            x = _scaled(logits[c], ctx.temperature) - log_z[c, None]
            p = x.exp()
            total = torch.zeros_like(p)
            if grad_logprobs is not None:
                total = p * -grad_logprobs[c, None]
                total.scatter_add_(-1, tokens[c, None], grad_logprobs[c, None])
            if grad_entropy is not None:
                x = x.clamp(min=torch.finfo(p.dtype).min)
                total -= grad_entropy[c, None] * p * (x + entropy[c, None])
            grad[c] = total / ctx.temperature
        return grad, None, None
