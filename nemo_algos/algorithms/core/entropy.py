"""Log-probs of given tokens and the exact entropy of their distributions, from logits.

    log p(a) = x_a - log Z        H = log Z - sum_v p_v x_v        p = softmax(x), x = logits / T

One pass over the vocabulary, in float32 whatever the dtype of the logits, and no float32 copy of
them at any time. N positions, V vocabulary, of which a tensor-parallel rank holds a shard. Each
rank reduces its shard to four numbers a position, and the ranks exchange those: one collective.
On CUDA the passes are the Triton kernels of entropy_triton.py; here is their oracle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_algos.algorithms.core.surrogate import working_dtype

CACHED = 1 << 17  # float32 numbers of a chunk that a CPU core keeps in its cache
CHUNK = 1 << 24  # elsewhere: 64 MiB
LOWEST = -1e30  # stands for -inf, so that 0 * log 0 is 0
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Shard:
    """This rank's part of the vocabulary: `real` rows from `start` on, and padding after them."""

    group: Any
    start: int
    real: int

    @staticmethod
    def of(width: int, group: Any, vocabulary: int | None) -> Shard:
        """This rank's shard where each rank of the group (None: the only one) has `width` rows."""
        rank, size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        vocabulary = width * size if vocabulary is None else vocabulary
        rows = width * size
        if not 0 < vocabulary <= rows:
            raise ValueError(f"vocabulary={vocabulary} must be in 1..{rows}, the rows on all ranks")
        return Shard(group, rank * width, min(max(vocabulary - rank * width, 0), width))

    def local(self, tokens: Tensor) -> Tensor:
        """[N] row numbers on this rank; -1 for tokens of other ranks."""
        rows = tokens - self.start
        return rows.where((rows >= 0) & (rows < self.real), -1)


class Moments(NamedTuple):
    """A row's max, sum e^(x - max), sum (x - max) e^(x - max), its token's x or -inf; [N] each."""

    max: Tensor
    total: Tensor
    weighted: Tensor
    chosen: Tensor


class TokenEntropy(NamedTuple):
    """log p(token), H and log Z, nats, [N] each."""

    logprobs: Tensor
    entropy: Tensor
    log_z: Tensor


def token_logprobs_and_entropy(
    logits: Tensor,
    tokens: Tensor,
    temperature: float = 1.0,
    group: Any = None,
    vocabulary: int | None = None,
    kept: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """log p(token) and H(p), nats, of p = softmax(logits / temperature) over the whole vocabulary.

    logits [..., V/TP], any float dtype: this rank's shard; tokens [...]: numbers in the whole
    vocabulary; group: the tensor-parallel process group (None: not sharded); vocabulary: its real
    size (rows beyond it are padding and take no part) -> two float32 [...], the same on every
    rank, differentiable (float64 where the logits are).
    kept [..., V/TP] bool, of what the token was sampled from: the log-prob is then
    log p(token) - log sum_kept p, -inf for a token outside; the entropy stays the whole one.
    Extra memory: O(N) and one chunk; in the backward also the gradient, in the logits' own dtype.
    Raises ValueError for a vocabulary larger than the logits.
    """
    shard = Shard.of(logits.shape[-1], group, vocabulary)
    flat = logits.reshape(-1, logits.shape[-1])
    rest = tokens.reshape(-1), temperature, shard
    logprobs, entropy = _FromLogits.apply(flat, *rest)
    if kept is not None:
        narrow = flat.where(kept.reshape(flat.shape), -torch.inf)
        logprobs = _FromLogits.apply(narrow, *rest)[0]
    return logprobs.view(tokens.shape), entropy.view(tokens.shape)


def moments(logits: Tensor, tokens: Tensor, temperature: float, shard: Shard) -> Moments:
    """The moments of this rank's logits [N,V/TP]; tokens [N]: the whole vocabulary's numbers."""
    local = shard.local(tokens)
    if _fused(logits):
        from nemo_algos.algorithms.core import entropy_triton

        return Moments(*entropy_triton.moments(logits, local, temperature, shard.real, LOWEST))
    nothing = logits.new_tensor((LOWEST, 0.0, 0.0, -torch.inf), dtype=working_dtype(logits))
    out = nothing[:, None].repeat(1, len(logits))
    for c in _chunks(logits) if shard.real else ():
        x = _scaled(logits[c, : shard.real], temperature)
        chosen = x.gather(-1, local[c, None].clamp(min=0))[:, 0].where(local[c] >= 0, -torch.inf)
        top = x.amax(-1).clamp(min=LOWEST)
        x.sub_(top[:, None]).clamp_(min=LOWEST)
        p = _exp(x)
        out[:, c] = torch.stack((top, p.sum(-1), p.mul_(x).sum(-1), chosen))
    return Moments(*out)


def over_vocabulary(own: Moments, shard: Shard) -> TokenEntropy:
    """The shards' moments put together; the one collective: an all-gather of [4,N]."""
    parts = torch.stack(own)[None]
    if shard.group is not None:
        own_part = parts
        size = dist.get_world_size(shard.group)
        parts = own_part.new_empty(size, *own_part.shape[1:])
        dist.all_gather(list(parts), own_part[0], group=shard.group)
    tops, totals, weighted, chosen = parts.unbind(1)
    top = tops.amax(0)
    lower = tops - top
    scale = lower.exp()
    total = (totals * scale).sum(0)
    mean = ((weighted + lower * totals) * scale).sum(0) / total  # of x - top
    log_z = top + total.log()
    return TokenEntropy(chosen.amax(0) - log_z, total.log() - mean, log_z)


def logits_gradient(
    logits: Tensor,
    tokens: Tensor,
    temperature: float,
    shard: Shard,
    result: TokenEntropy,
    grad_logprobs: Tensor | None,
    grad_entropy: Tensor | None,
) -> Tensor:
    """The gradient of this rank's logits, in their dtype, without a collective.

    d log p(a) / dx_v = 1[v = a] - p_v;  dH / dx_v = -p_v (log p_v + H).
    """
    grads = []
    for given in (grad_logprobs, grad_entropy):
        grads.append(torch.zeros_like(result.log_z) if given is None else given)
    local = shard.local(tokens)
    if _fused(logits):
        from nemo_algos.algorithms.core import entropy_triton

        rows = (shard.real, LOWEST, result.log_z, result.entropy, *grads)
        return entropy_triton.gradient(logits, local, temperature, *rows)
    grad = torch.zeros_like(logits)
    for c in _chunks(logits) if shard.real else ():
        log_p = _scaled(logits[c, : shard.real], temperature).sub_(result.log_z[c, None])
        p = _exp(log_p.clamp_(min=LOWEST))
        d_logprobs, d_entropy = (g[c, None] for g in grads)
        if grad_entropy is None:
            total = p.mul_(-d_logprobs)
        else:
            slope = log_p.add_(result.entropy[c, None]).mul_(d_entropy).add_(d_logprobs)
            total = slope.mul_(p).neg_()
        here = local[c, None] >= 0
        total.scatter_add_(-1, local[c, None].clamp(min=0), d_logprobs.where(here, 0.0))
        grad[c, : shard.real] = total.div_(temperature)
    return grad


class _FromLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, tokens: Tensor, temperature: float, shard: Shard
    ) -> tuple[Tensor, Tensor]:
        result = over_vocabulary(moments(logits, tokens, temperature, shard), shard)
        ctx.save_for_backward(logits, tokens, *result)
        ctx.rest = (temperature, shard)
        ctx.set_materialize_grads(False)
        return result.logprobs, result.entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, None, None, None]:
        logits, tokens, *result = ctx.saved_tensors
        temperature, shard = ctx.rest
        grad = logits_gradient(logits, tokens, temperature, shard, TokenEntropy(*result), *grads)
        return grad, None, None, None


def _fused(logits: Tensor) -> bool:
    return logits.is_cuda and logits.dtype != torch.float64


def _chunks(logits: Tensor) -> Iterator[slice]:
    rows = max(1, (CACHED if logits.is_cpu else CHUNK) // logits.shape[1])
    return (slice(i, i + rows) for i in range(0, len(logits), rows))


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """A copy, in the dtype of the arithmetic."""
    return logits.to(working_dtype(logits), copy=True).div_(temperature)


def _exp(x: Tensor) -> Tensor:
    """e^x; torch's CPU computes 2^x four times as fast as e^x."""
    return (x * LOG2_E).exp2_() if x.is_cpu else x.exp()
