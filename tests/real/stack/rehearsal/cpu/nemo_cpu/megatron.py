"""megatron-core without CUDA and Transformer Engine."""

from copy import copy
from itertools import pairwise
from typing import Any

from nemo_cpu import replace, shim

CORE = "megatron/core/"
WORKER = "nemo_rl/models/policy/workers/megatron_policy_worker.py"


@shim(
    "megatron.core.distributed.fsdp.mcore_fsdp_adapter",
    (WORKER, "FullyShardedDataParallelV1"),
    refs=("main",),
)
def fsdp_versions(module: Any) -> None:
    """Names newer than megatron-core 0.19, for an isinstance."""
    for name in ("FullyShardedDataParallelV1", "FullyShardedDataParallelV2"):
        replace(module, name, module.FullyShardedDataParallel)


@shim(
    "megatron.core.transformer.dot_product_attention",
    (CORE + "transformer/dot_product_attention.py", "packed_seq_params is None"),
)
def packed_attention(module: Any) -> None:
    """Packed sequences are Transformer Engine's alone: dense attention within each of them."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region

    def held(starts: list[int], rank: int, size: int) -> Any:
        """[T/C]: the tokens of a context-parallel rank, chunks r and 2C-1-r of each sequence."""
        if size == 1:
            return torch.arange(starts[-1])
        chunks = [torch.arange(a, b).chunk(2 * size) for a, b in pairwise(starts)]
        return torch.cat([x for c in chunks for x in (c[rank], c[2 * size - 1 - rank])])

    def forward(
        self: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        attn_mask_type: Any = None,
        attention_bias: Any = None,
        packed_seq_params: Any = None,
        **kwargs: Any,
    ) -> Any:
        if packed_seq_params is None:
            args = (query, key, value, attention_mask, attn_mask_type, attention_bias)
            return original(self, *args, packed_seq_params=None, **kwargs)
        starts = packed_seq_params.cu_seqlens_q_padded
        starts = packed_seq_params.cu_seqlens_q if starts is None else starts
        group = parallel_state.get_context_parallel_group()
        parts = [held(starts.tolist(), rank, group.size()) for rank in range(group.size())]
        tokens, others = parts[group.rank()], torch.cat(parts)
        if group.size() > 1:
            gather = gather_from_sequence_parallel_region
            key, value = (gather(x, True, group) for x in (key, value))
        rows, columns = (torch.bucketize(x, starts.long(), right=True) for x in (tokens, others))
        allowed = (rows[:, None] == columns) & (tokens[:, None] >= others)
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))  # [heads,T,D]
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, allowed, scale=self.softmax_scale, enable_gqa=True
        )
        return out.transpose(0, 1).flatten(1)[:, None]

    original = replace(module.DotProductAttention, "forward", forward)


@shim(
    "megatron.core.transformer.dot_product_attention",
    (CORE + "transformer/dot_product_attention.py", "Context parallelism is only supported by TE"),
)
def context_parallel(module: Any) -> None:
    """Context parallelism is Transformer Engine's alone: packed_attention gathers the keys."""

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        alone = copy(config)
        alone.context_parallel_size = 1
        original(self, alone, *args, **kwargs)

    original = replace(module.DotProductAttention, "__init__", __init__)


@shim(
    "megatron.core.transformer.torch_norm",
    (CORE + "transformer/torch_norm.py", "sequence parallel not supported by torch LayerNorm"),
)
def sequence_parallel_norm(module: Any) -> None:
    """Each rank norms its part of a sequence, and says so to finalize_model_grads."""

    def new(cls: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        alone = copy(config)
        alone.sequence_parallel = False
        norm = original(cls, alone, *args, **kwargs)
        norm.weight.sequence_parallel = config.sequence_parallel
        return norm

    original = replace(module.WrappedTorchNorm, "__new__", staticmethod(new))


@shim(
    "megatron.core.transformer.moe.token_dispatcher",
    (CORE + "tensor_parallel/mappings.py", "torch.distributed.all_to_all_single("),
)
def expert_splits(module: Any) -> None:
    """How many tokens go to each rank: numbers, once they have left the GPU."""

    def moved(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and tensor is not None else tensor

    replace(module, "maybe_move_tensor_to_cpu", moved)
