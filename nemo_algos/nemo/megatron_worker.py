"""NeMo-RL's Megatron policy worker that also returns exact token entropies, from the forward of the
previous log-probs.

Imported in the worker's environment only. Entropy is of the temperature-scaled, unfiltered
distribution, nats, at the token that it predicts ([B,S], index 0 is 0), as the log-probs are. C
ranks of context parallelism hold S / C each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nemo_rl.models.policy.workers.megatron_policy_worker as stock
import ray
import torch
import torch.distributed as dist
import torch.nn.functional as F
from nemo_rl.distributed.model_utils import (
    ChunkedDistributedEntropy,
    allgather_cp_sharded_tensor,
)
from nemo_rl.models.megatron import train
from nemo_rl.models.policy.utils import get_runtime_env_for_policy_worker
from torch import Tensor

from nemo_algos.nemo.entropy_worker import EntropyMixin, recording

CHUNK = 256  # positions at a time where policy.logprob_chunk_size is not set


class EntropyPostProcessor(train.LogprobsPostProcessor):
    """As NeMo-RL's; each micro-batch's entropies [b,S] are appended to `sink`."""

    def __init__(self, *args: Any, sink: list[Tensor], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sink = sink

    def __call__(self, data_dict: Any, input_ids: Tensor, cu_seqlens_padded: Tensor) -> Callable:
        """See NeMo-RL: a function of the logits."""
        inner = super().__call__(data_dict, input_ids, cu_seqlens_padded)
        rows, width = data_dict["input_ids"].shape

        def process(logits: Tensor) -> Any:
            group = train.get_tensor_model_parallel_group()
            chunk = int(self.cfg.get("logprob_chunk_size") or CHUNK)
            entropy = -ChunkedDistributedEntropy.apply(logits, chunk, group, True)
            if self.cfg["sequence_packing"]["enabled"]:
                entropy = unpacked(entropy[0], cu_seqlens_padded.tolist(), rows, width)
            else:
                entropy = F.pad(entropy[:, : width - 1], (1, 0))
            self.sink.append(entropy)
            return inner(logits)

        return process


def unpacked(packed: Tensor, starts: list[int], rows: int, width: int) -> Tensor:
    """packed [T/C] at predicting positions, sequence i in starts[i]..starts[i+1] -> [rows,width] at
    predicted tokens."""
    group = train.get_context_parallel_group()
    ranks = dist.get_world_size(group)
    out = packed.new_zeros(rows, width)
    for i in range(rows):
        own = packed[starts[i] // ranks : starts[i + 1] // ranks]
        whole = allgather_cp_sharded_tensor(own, group, seq_dim=0) if ranks > 1 else own
        n = min(len(whole), width) - 1
        out[i, 1 : 1 + n] = whole[:n]
    return out


class EntropyWorkerImpl(EntropyMixin, stock.MegatronPolicyWorkerImpl):
    """get_logprobs also returns `entropies` [B,S]; the reference model's forward does not."""

    def get_logprobs(self, *, data: Any, **kwargs: Any) -> Any:
        """See NeMo-RL."""
        if self.reference_pass:
            return super().get_logprobs(data=data, **kwargs)
        with recording(stock, EntropyPostProcessor) as sink:
            out = super().get_logprobs(data=data, **kwargs)
        width = data["input_ids"].shape[1]
        last = stock.parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        whole = torch.cat([F.pad(e, (0, width - e.shape[1])) for e in sink]) if last else None
        # every pipeline stage takes part in the broadcast
        tensors = stock.broadcast_tensors_from_last_stage({"entropies": whole})
        out["entropies"] = tensors["entropies"].cpu()
        return out


@ray.remote(runtime_env=get_runtime_env_for_policy_worker("megatron_policy_worker"))
class EntropyWorker(EntropyWorkerImpl):
    """What `worker_extension_cls_fqn` names."""
