"""entropy.py from hidden states and the output layer's weight: the logits are never stored.

    x = h W^T / T        dh = dx W        dW = dx^T h

A chunk of positions at a time: its logits in the forward, and again, with their gradient, in the
backward. N positions, H hidden size, V vocabulary, of which a tensor-parallel rank holds a shard.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_algos.algorithms.core import entropy
from nemo_algos.algorithms.core.entropy import Moments, Shard, TokenEntropy

CHUNK = 1 << 26  # logits at a time: 128 MiB in bf16


def token_logprobs_and_entropy_from_hidden(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    temperature: float = 1.0,
    group: Any = None,
    vocabulary: int | None = None,
) -> tuple[Tensor, Tensor]:
    """log p(token) and H(p), nats, of p = softmax(hidden weight^T / temperature).

    hidden [..., H]: whole on every tensor-parallel rank; weight [V/TP, H]: this rank's rows;
    the rest, result and ValueError as in core.entropy.token_logprobs_and_entropy. The gradient of
    hidden is summed over the group here (gather a sequence-parallel hidden state with
    `tensor_parallel_output_grad=False`); the weight's is accumulated in float32.
    """
    shard = Shard.of(len(weight), group, vocabulary)
    flat = hidden.reshape(-1, hidden.shape[-1])
    logprobs, h = _FromHidden.apply(flat, weight, tokens.reshape(-1), temperature, shard)
    return logprobs.view(tokens.shape), h.view(tokens.shape)


class _FromHidden(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, tokens: Tensor, temperature: float, shard: Shard
    ) -> tuple[Tensor, Tensor]:
        parts = []
        for c in _chunks(hidden, weight):
            parts.append(
                torch.stack(entropy.moments(hidden[c] @ weight.T, tokens[c], temperature, shard))
            )
        result = entropy.over_vocabulary(Moments(*torch.cat(parts, 1)), shard)
        ctx.save_for_backward(hidden, weight, tokens, *result)
        ctx.rest = (temperature, shard)
        ctx.set_materialize_grads(False)
        return result.logprobs, result.entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, Tensor, None, None, None]:
        hidden, weight, tokens, *result = ctx.saved_tensors
        temperature, shard = ctx.rest
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight, dtype=entropy.working_dtype(weight))
        for c in _chunks(hidden, weight):
            rows = TokenEntropy(*(x[c] for x in result))
            chosen = []
            for grad in grads:
                chosen.append(None if grad is None else grad[c])
            logits = hidden[c] @ weight.T
            slope = entropy.logits_gradient(logits, tokens[c], temperature, shard, rows, *chosen)
            of_hidden[c] = slope @ weight
            of_weight += slope.T @ hidden[c]
        if shard.group is not None:
            dist.all_reduce(of_hidden, group=shard.group)
        return of_hidden, of_weight.to(weight.dtype), None, None, None


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    rows = max(1, CHUNK // len(weight))
    return [slice(i, i + rows) for i in range(0, len(hidden), rows)]
