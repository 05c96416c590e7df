"""NeMo-RL's Megatron policy worker that also gives exact token entropies.

Returned ones come from the forward of the previous log-probs: its logits, or the hidden states
where it makes no logits (`use_fused_linear_logprobs`); those with gradient, for terms of the loss,
from training's logits. Imported in the worker's environment only. Entropy is
of the temperature-scaled, unfiltered distribution, nats, at the token that it predicts ([B,S], 0 at
index 0 and beyond a sequence's end), and over the model's real vocabulary: where a checkpoint pads
it, NeMo-RL's log-probs count those rows too. C ranks of context parallelism hold S / C each.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import nemo_rl.models.policy.workers.megatron_policy_worker as stock
import ray
import torch
import torch.distributed as dist
import torch.nn.functional as F
from nemo_rl.distributed import model_utils
from nemo_rl.distributed.model_utils import allgather_cp_sharded_tensor
from nemo_rl.models.megatron import train
from nemo_rl.models.policy.utils import get_runtime_env_for_policy_worker
from torch import Tensor

from nemo_algos.algorithms.core.linear_entropy import token_logprobs_and_entropy_from_hidden
from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.entropy_worker import EntropyMixin, GradientMixin, entropies, recording


class EntropyPostProcessor(train.LogprobsPostProcessor):
    """As NeMo-RL's; each micro-batch's entropies [b,S] are appended to `sink`."""

    def __init__(
        self, *args: Any, sink: list[Tensor], vocabulary: int, fused: list[Tensor], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sink = sink
        self.vocabulary = vocabulary
        self.fused = fused

    def __call__(self, data_dict: Any, input_ids: Tensor, cu_seqlens_padded: Tensor) -> Callable:
        inner = super().__call__(data_dict, input_ids, cu_seqlens_padded)
        rows, width = data_dict["input_ids"].shape

        def process(output: Tensor) -> Any:
            if self.fused:
                entropy = self.fused.pop()
            else:
                group = train.get_tensor_model_parallel_group()
                entropy = entropies(output, group, self.vocabulary)
            if self.cfg["sequence_packing"]["enabled"]:
                entropy = unpack(entropy[0], cu_seqlens_padded.tolist(), rows, width)
            else:
                entropy = F.pad(entropy[:, : width - 1], (1, 0))
            lengths = data_dict["input_lengths"].to(entropy.device)
            within = torch.arange(width, device=entropy.device) < lengths[:, None]
            self.sink.append(entropy.where(within, 0.0))
            return inner(output)

        return process


@contextmanager
def hidden_state_entropies(vocabulary: int) -> Iterator[list[Tensor]]:
    """Within, NeMo-RL's fused log-probs leave the entropies [b,S] of their hidden states too."""
    fused: list[Tensor] = []
    name = "from_parallel_hidden_states_to_logprobs"
    original = getattr(model_utils, name)

    def with_entropies(hidden: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        group = kwargs["tp_group"]
        parts = [torch.empty_like(hidden) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, hidden.contiguous(), group=group)  # sequence-parallel [S/TP,b,H]
        whole = torch.cat(parts).transpose(0, 1)
        tokens = torch.zeros(whole.shape[:2], dtype=torch.long, device=whole.device)
        outputs = token_logprobs_and_entropy_from_hidden(
            whole, weight, tokens, group=group, vocabulary=vocabulary
        )
        fused.append(outputs[1])
        return original(hidden, weight, *args, **kwargs)

    with versions.replace_attributes((model_utils, name, with_entropies)):
        yield fused


def unpack(packed: Tensor, starts: list[int], rows: int, width: int) -> Tensor:
    """packed [T/C], sequence i in starts[i]..starts[i+1], -> [rows,width], at predicted tokens."""
    group = train.get_context_parallel_group()
    ranks = dist.get_world_size(group)
    out = packed.new_zeros(rows, width)
    for i in range(rows):
        own = packed[starts[i] // ranks : starts[i + 1] // ranks]
        whole = allgather_cp_sharded_tensor(own, group, seq_dim=0) if ranks > 1 else own
        n = min(len(whole), width) - 1
        out[i, 1 : 1 + n] = whole[:n]
    return out


class GradientWorkerImpl(GradientMixin, stock.MegatronPolicyWorkerImpl):
    """Its loss is given `entropy` [b,S-1] with gradient, where it takes that."""

    def prepared(self) -> Any:
        def of_rows(
            logits: Tensor,
            data: Any,
            *,
            vocab_parallel_group: Any,
            context_parallel_group: Any,
            **_: Any,
        ) -> Tensor:
            entropy = entropies(logits, vocab_parallel_group, vocabulary)
            if dist.get_world_size(context_parallel_group) > 1:
                entropy = allgather_cp_sharded_tensor(entropy, context_parallel_group)
            return entropy[:, : data["input_ids"].shape[1] - 1]

        def of_pack(
            logits: Tensor,
            data: Any,
            *,
            vocab_parallel_group: Any,
            cu_seqlens_q_padded: Tensor,
            **_: Any,
        ) -> Tensor:
            entropy = entropies(logits, vocab_parallel_group, vocabulary)[0]
            shape = data["input_ids"].shape
            return unpack(entropy, cu_seqlens_q_padded.tolist(), *shape)[:, 1:]

        vocabulary = self.megatron_cfg.model.vocab_size
        names = {"prepare_loss_input": of_rows, "prepare_packed_loss_input": of_pack}
        return tuple((train, name, of) for name, of in names.items())


class EntropyWorkerImpl(EntropyMixin, GradientWorkerImpl):
    """get_logprobs also returns `entropies` [B,S]; the reference model's forward does not."""

    def get_logprobs(self, *, data: Any, **kwargs: Any) -> Any:
        if self.reference_pass:
            return super().get_logprobs(data=data, **kwargs)
        vocabulary = self.megatron_cfg.model.vocab_size
        with (
            hidden_state_entropies(vocabulary) as fused,
            recording(stock, EntropyPostProcessor, vocabulary=vocabulary, fused=fused) as sink,
        ):
            out = super().get_logprobs(data=data, **kwargs)
        width = data["input_ids"].shape[1]
        last = stock.parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        whole = torch.cat([F.pad(e, (0, width - e.shape[1])) for e in sink]) if last else None
        # every pipeline stage takes part in the broadcast
        tensors = stock.broadcast_tensors_from_last_stage({"entropies": whole})
        out["entropies"] = tensors["entropies"].cpu()
        return out


_remote = ray.remote(runtime_env=get_runtime_env_for_policy_worker("megatron_policy_worker"))


@_remote
class GradientWorker(GradientWorkerImpl):
    """What `worker_extension_cls_fqn` names."""


@_remote
class EntropyWorker(EntropyWorkerImpl):
    """Likewise."""
