"""megatron-core without CUDA and Transformer Engine."""

from typing import Any

from nemo_cpu import replace, shim

CORE = "megatron/core/"
WORKER = "nemo_rl/models/policy/workers/megatron_policy_worker.py"


@shim(
    "megatron.core.distributed.fsdp.mcore_fsdp_adapter",
    (WORKER, "FullyShardedDataParallelV1,"),
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
        tokens = torch.arange(len(query))
        sequence = torch.bucketize(tokens, starts.long(), right=True)
        allowed = (sequence[:, None] == sequence) & (tokens[:, None] >= tokens)
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))  # [heads,T,D]
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, allowed, scale=self.softmax_scale, enable_gqa=True
        )
        return out.transpose(0, 1).flatten(1)[:, None]

    original = replace(module.DotProductAttention, "forward", forward)


@shim(
    "megatron.core.dist_checkpointing.strategies.filesystem_async",
    (CORE + "dist_checkpointing/strategies/filesystem_async.py", "ctx.Manager().Queue()"),
)
def writer_is_forked(module: Any) -> None:
    """A spawned manager imports the test's __main__ again."""
    original = replace(module, "get_write_results_queue", lambda *_: original("fork"))


@shim(
    "megatron.core.datasets.utils",
    ("megatron/bridge/training/initialize.py", "compile_helpers()"),
)
def no_make(module: Any) -> None:
    """Bridge would run make for the indices of data sets, which NeMo-RL has none of."""
    replace(module, "compile_helpers", lambda: None)
