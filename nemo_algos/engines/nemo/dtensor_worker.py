"""NeMo-RL's DTensor (v2) worker that also returns exact token entropies; see megatron_worker."""

from typing import Any

import nemo_rl.models.policy.workers.dtensor_policy_worker_v2 as stock
import ray
import torch
import torch.nn.functional as F
from nemo_rl.models.automodel import train
from nemo_rl.models.policy.utils import get_runtime_env_for_policy_worker
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from nemo_algos.engines.nemo.entropy_worker import EntropyMixin, entropies, recording


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
        if not isinstance(logits, DTensor):
            return entropies(logits, None)
        entropy = entropies(logits.to_local(), self.device_mesh.get_group("tp"))
        if self.cp_size == 1:
            return entropy
        whole = DTensor.from_local(entropy, self.cp_mesh, [Shard(1)]).full_tensor()
        order = DTensor.from_local(inputs.seq_index, self.cp_mesh, [Shard(1)]).full_tensor()
        return whole[:, order.squeeze(0).argsort()]


class EntropyWorkerImpl(EntropyMixin, stock.DTensorPolicyWorkerV2Impl):
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


@ray.remote(runtime_env=get_runtime_env_for_policy_worker("dtensor_policy_worker_v2"))
class EntropyWorker(EntropyWorkerImpl):
    """What `worker_extension_cls_fqn` names."""
