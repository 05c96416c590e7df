"""NeMo-RL's DTensor (v2) worker that also gives exact token entropies; see megatron_worker."""

from typing import Any

import nemo_rl.models.policy.workers.dtensor_policy_worker_v2 as stock
import ray
import torch
import torch.nn.functional as F
from nemo_rl.models.automodel import train
from nemo_rl.models.policy.utils import get_runtime_env_for_policy_worker
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from nemo_algos.engines.nemo.entropy_worker import EntropyMixin, GradientMixin, entropies, recording


class EntropyPostProcessor(train.LogprobsPostProcessor):
    """As NeMo-RL's; each micro-batch's entropies [b,S] are appended to `sink`."""

    def __init__(self, *args: Any, sink: list[Tensor], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sink = sink

    def __call__(
        self,
        logits: Tensor,
        data_dict: Any,
        processed_inputs: Any,
        original_batch_size: int,
        original_seq_len: int,
        sequence_dim: int = 1,
    ) -> Tensor:
        entropy = self._entropy(logits, processed_inputs, sequence_dim)  # at predicting positions
        lengths = data_dict["input_lengths"].tolist()
        if self.enable_seq_packing:
            starts = processed_inputs.flash_attn_kwargs.cu_seqlens_q.tolist()
            rows = [entropy[0, starts[i] :][: n - 1] for i, n in enumerate(lengths)]
        else:
            rows = [entropy[i, : n - 1] for i, n in enumerate(lengths)]
        self.sink.append(torch.stack([F.pad(r, (1, original_seq_len - 1 - len(r))) for r in rows]))
        return super().__call__(
            logits, data_dict, processed_inputs, original_batch_size, original_seq_len, sequence_dim
        )

    def _entropy(self, logits: Tensor, inputs: Any, sequence_dim: int) -> Tensor:
        """[b,S], the whole sequence in its order, whatever the sharding."""
        if self.cp_size > 1:
            logits = train.redistribute_logits_for_cp(
                logits, self.device_mesh, self.cp_mesh, sequence_dim
            )
            order = DTensor.from_local(inputs.seq_index, self.cp_mesh, [Shard(1)]).full_tensor()
            return in_order(of_shard(logits), self.cp_mesh, order.squeeze(0))
        return of_shard(logits)


def of_shard(logits: Tensor) -> Tensor:
    """[b,S/C,V], a DTensor where the vocabulary is sharded, -> [b,S/C]."""
    if not isinstance(logits, DTensor):
        return entropies(logits, None)
    return entropies(logits.to_local(), logits.device_mesh.get_group("tp"))


def in_order(own: Tensor, ranks: Any, order: Tensor) -> Tensor:
    """[b,S/C] of each rank of context parallelism -> [b,S]; order [S]: the gathered positions."""
    return DTensor.from_local(own, ranks, [Shard(1)]).full_tensor()[:, order.argsort()]


def next_token_entropies(logits: Tensor, data: Any, **_: Any) -> Tensor:
    """[b,S-1] of what NeMo-RL gives its loss; input_ids is a DTensor under context parallelism."""
    ids = data["input_ids"]
    entropy = of_shard(logits)
    if isinstance(ids, DTensor):
        entropy = in_order(entropy, ids.device_mesh, data["seq_index"])
    return entropy[:, : ids.shape[1] - 1]


class GradientWorkerImpl(GradientMixin, stock.DTensorPolicyWorkerV2Impl):
    """Its loss is given `entropy` [b,S-1] with gradient, where it takes that."""

    def prepared(self) -> Any:
        return ((train, "prepare_loss_input", next_token_entropies),)


class EntropyWorkerImpl(EntropyMixin, GradientWorkerImpl):
    """get_logprobs also returns `entropies` [B,S]; the reference model's forward does not."""

    def get_logprobs(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        if self.reference_pass:
            return super().get_logprobs(data, *args, **kwargs)
        with recording(stock, EntropyPostProcessor) as sink:
            out = super().get_logprobs(data, *args, **kwargs)
        rows, width = data["input_ids"].shape
        whole = torch.cat([F.pad(e, (0, width - e.shape[1])) for e in sink])
        out["entropies"] = whole[:rows].cpu()  # FSDP pads the last micro-batches with dummies
        return out


_remote = ray.remote(runtime_env=get_runtime_env_for_policy_worker("dtensor_policy_worker_v2"))


@_remote
class GradientWorker(GradientWorkerImpl):
    """What `worker_extension_cls_fqn` names."""


@_remote
class EntropyWorker(EntropyWorkerImpl):
    """Likewise."""
