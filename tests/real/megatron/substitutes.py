"""What megatron-core takes from Transformer Engine alone, so that layouts which need it run here.

Norm: for sequence parallelism, instead of TENorm. Attention: for context parallelism, instead of
TEDotProductAttention (ring attention). gather: instead of NeMo-RL's allgather_cp_sharded_tensor.
Under C context-parallel ranks a sequence is cut into 2C chunks; rank r holds r and 2C-1-r.
"""

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from torch import Tensor


def positions(length: int, rank: int, size: int) -> Tensor:
    """[S/C], the positions that a context-parallel rank holds."""
    chunks = torch.arange(length).chunk(2 * size)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])


class Norm(torch.nn.RMSNorm):
    """RMSNorm that tells finalize_model_grads that each rank saw a part of the sequence."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel


class Attention(torch.nn.Module):
    """Causal attention of this rank's queries to the keys and values of the whole sequence."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self.group = parallel_state.get_context_parallel_group()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """query [S/C,B,N,D], key and value [S/C,B,G,D] -> [S/C,B,N*D]."""
        size = self.group.size()
        length = len(query) * size
        held = torch.cat([positions(length, r, size) for r in range(size)])
        mask = positions(length, self.group.rank(), size)[:, None] >= held
        key, value = (
            gather_from_sequence_parallel_region(x, True, self.group) for x in (key, value)
        )
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, mask, enable_gqa=True
        )
        return out.permute(2, 0, 1, 3).flatten(2)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, group: dist.ProcessGroup) -> Tensor:
        length = own.shape[1] * group.size()
        ctx.held = positions(length, group.rank(), group.size())
        whole = own.new_zeros(len(own), length)
        whole[:, ctx.held] = own
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0][:, ctx.held], None  # every rank computes the same loss of the whole


def gather(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[B,S/C] of each rank -> [B,S] on all of them."""
    return _Gather.apply(own, group)
