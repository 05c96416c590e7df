"""NeMo-RL's policy in this process, on CPU, over a tiny causal LM.

`CpuPolicy` is NeMo-RL's `Policy`: constructor, sharding over data-parallel ranks, packing,
gathering and checkpoint calls are its own. Only its worker group is replaced, by
`InProcessWorkers`: the loop of MegatronPolicyWorker.train with NeMo-RL's own micro-batch iterator,
packing, LossPostProcessor (which picks unpacked, SequencePackingLossWrapper or the fused wrapper
from policy.sequence_packing) and LogprobsPostProcessor; Megatron itself is stubs.py. The ranks
share one model and run in turn: gradients add up, as under Megatron. The loss is pickled for every
rank and call, as Ray does.
"""

import copy
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ray
import stubs
import torch
from nemo_rl.algorithms.logits_sampling_utils import TrainingSamplingParams
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.megatron import data as megatron_data
from nemo_rl.models.megatron import train as megatron_train
from nemo_rl.models.policy import lm_policy
from no_ray import Done
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM

Shards = list[BatchedDataDict]


def tiny_llama(vocabulary: int, seed: int = 0, scale: float = 0.3) -> LlamaForCausalLM:
    """In float64, so that no drawn token and no clipped ratio hangs on a kernel's rounding."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": scale}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **sizes, **heads)).double().eval()


class MegatronShape(torch.nn.Module):
    """A Hugging Face model called as Megatron's: logits of [B, S], or of one packed row [1, T]."""

    config = SimpleNamespace(fine_grained_activation_offloading=False)

    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, packed_seq_params: Any = None, **_: Any) -> Tensor:
        if packed_seq_params is None:
            return self.model(input_ids).logits
        lengths = packed_seq_params.cu_seqlens_q_padded.diff().tolist()
        rows = pad_sequence(input_ids[0].split(lengths), batch_first=True)
        logits = self.model(rows).logits  # causal: the padding at a row's end changes nothing
        return torch.cat([row[:n] for row, n in zip(logits, lengths, strict=True)])[None]


class InProcessWorkers:
    """RayWorkerGroup's methods as `Policy` calls them; `log` names the calls without data."""

    def __init__(self, model: LlamaForCausalLM, config: dict[str, Any], ranks: int, lr: float):
        self.model, self.cfg, self.ranks = MegatronShape(model), config, ranks
        self.reference = copy.deepcopy(self.model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.logprobs_post_processor: Any = megatron_train.LogprobsPostProcessor
        self.log: list[str] = []
        sampling = ("top_k", "top_p", "temperature")
        self.sampling = TrainingSamplingParams(**{k: config["generation"][k] for k in sampling})

    def run_all_workers_sharded_data(
        self, method: str, *, data: Shards, common_kwargs: dict[str, Any] | None = None, **_: Any
    ) -> Done:
        assert len(data) == self.ranks
        return Done(getattr(self, method)(data, **(common_kwargs or {})))

    def get_all_worker_results(self, future: Done) -> list[Any]:
        return future.value

    def run_all_workers_single_data(self, method: str, **kwargs: Any) -> list[Done]:
        """What only moves memory on a GPU does nothing here."""
        self.log.append(method)
        value = getattr(self, method, lambda **_: None)(**kwargs)
        return [Done(value)] * self.ranks

    def shutdown(self, **_: Any) -> bool:
        return True

    def get_free_memory_bytes(self) -> int:
        return 1 << 30

    def save_checkpoint(self, weights_path: str, optimizer_path: str | None = None, **_: Any):
        parts = {weights_path: self.model.model, optimizer_path: self.optimizer}
        for path, part in parts.items():
            if path:
                Path(path).mkdir(parents=True)
                torch.save(part.state_dict(), Path(path) / "state.pt")

    def load_checkpoint(self, weights_path: Any, optimizer_path: Any) -> None:
        for path, part in {weights_path: self.model.model, optimizer_path: self.optimizer}.items():
            if path:
                part.load_state_dict(torch.load(Path(path) / "state.pt"))

    def train(
        self, shards: Shards, *, loss_fn: Any, eval_mode: bool, gbs: int, mbs: int, **_: Any
    ) -> list[dict[str, Any]]:
        losses = [ray.cloudpickle.loads(ray.cloudpickle.dumps(loss_fn)) for _ in shards]
        batches = sum(shard.size for shard in shards) // gbs
        metrics: list[dict[str, list]] = [defaultdict(list) for _ in shards]
        totals, norm = [], torch.zeros(())
        for index in range(batches):
            parts = [
                megatron_data.process_global_batch(
                    shard, loss, stubs.group("data"), batch_idx=index, batch_size=gbs // self.ranks
                )
                for shard, loss in zip(shards, losses, strict=True)
            ]
            valid = {
                name: torch.stack([part[name] for part in parts]).sum()  # the ranks' all-reduce
                for name in ("global_valid_seqs", "global_valid_toks")
            }
            self.optimizer.zero_grad()
            results = [
                self._forward_backward(
                    part["batch"],
                    mbs,
                    lambda n, loss=loss: megatron_train.LossPostProcessor(
                        loss, self.cfg, num_microbatches=n, sampling_params=self.sampling
                    ),
                    forward_only=eval_mode,
                    **valid,
                )
                for part, loss in zip(parts, losses, strict=True)
            ]
            if not eval_mode:
                norm = torch.nn.utils.clip_grad_norm_(
                    self.model.parameters(), self.cfg["max_grad_norm"]
                )
                self.optimizer.step()
            for rank, result in zip(metrics, results, strict=True):
                for values in result:
                    self._collect(rank, values, batches, valid)
            totals.append(sum(v["loss"] / batches for result in results for v in result))
        loss, norm = torch.tensor(totals), norm.detach().reshape(1)
        return [
            {"global_loss": loss, "grad_norm": norm, "all_mb_metrics": dict(rank)}
            for rank in metrics
        ]

    def _collect(self, rank: dict[str, list], values: dict, batches: int, valid: dict) -> None:
        """As the worker: its division by the number of global batches, its own metrics."""
        for name, value in values.items():
            rank[name].append(value if "_min" in name or "_max" in name else value / batches)
        extra = {"lr": self.optimizer.param_groups[0]["lr"], "wd": 0.0}
        for name, value in (extra | {k: v.item() for k, v in valid.items()}).items():
            rank[name].append(value)

    def _forward_backward(
        self, data: BatchedDataDict, mbs: int, post: Any, model: Any = None, **kwargs: Any
    ) -> list[dict[str, Any]]:
        iterator, count, size, _, length = megatron_data.get_microbatch_iterator(
            data, self.cfg, mbs, straggler_timer=None
        )
        return megatron_train.megatron_forward_backward(
            model=model or self.model,
            data_iterator=iterator,
            num_microbatches=count,
            seq_length=length,
            mbs=size,
            post_processing_fn=post(count),
            sampling_params=self.sampling,
            **kwargs,
        )

    @torch.no_grad()
    def get_logprobs(self, shards: Shards, model: Any = None) -> list[BatchedDataDict]:
        """Every key that the post-processor returns is gathered, not only "logprobs"."""

        def post(_count: int) -> Any:
            return self.logprobs_post_processor(self.cfg, sampling_params=self.sampling)

        outputs, size = [], self.cfg["logprob_batch_size"]
        for shard in shards:
            results = self._forward_backward(shard, size, post, model, forward_only=True)
            outputs.append(
                BatchedDataDict({k: torch.cat([r[k] for r in results]) for k in results[0]})
            )
        return outputs

    def get_reference_policy_logprobs(self, shards: Shards, **_: Any) -> list[BatchedDataDict]:
        results = self.get_logprobs(shards, self.reference)
        return [BatchedDataDict({"reference_logprobs": r["logprobs"]}) for r in results]


class CpuPolicy(lm_policy.Policy):
    """NeMo-RL's Policy over `ranks` data-parallel ranks; `workers` is its worker group."""

    def __init__(
        self, config: dict[str, Any], tokenizer: Any, model: LlamaForCausalLM, ranks: int, lr: float
    ) -> None:
        self.workers = InProcessWorkers(model, config, ranks, lr)
        cluster = SimpleNamespace(world_size=lambda: ranks, _sorted_bundle_indices=None)
        replaced = {
            "RayWorkerGroup": lambda *_, **__: self.workers,
            "RayWorkerBuilder": mock.Mock(),
            "RayQueue": mock.Mock(),
            "get_default_hf_config": mock.Mock(side_effect=ValueError("no FLOPs on a CPU")),
        }
        arch = {"TORCH_CUDA_ARCH_LIST": "9.0"}
        with mock.patch.multiple(lm_policy, **replaced), mock.patch.dict(os.environ, arch):
            super().__init__(cluster, config, tokenizer)


class OneModel:
    """For a worker of NeMo-RL's: the model of these workers, not one that a GPU loads."""

    def __init__(self, workers: Any) -> None:
        self.model, self.reference = workers.model, workers.reference
        self.cfg, self.sampling_params = workers.cfg, workers.sampling
        self.megatron_cfg = SimpleNamespace(model=SimpleNamespace(vocab_size=64))
        self.mcore_state = SimpleNamespace(straggler_timer=None)
        self.timer = SimpleNamespace(start=lambda _: None, stop=lambda _: None)
        self.media_placeholder_token_id = None
        self.delegate_pack_to_model = self.delegate_mtp_loss_mask_to_model = False
        self.model_slices_context_parallel_inputs = False
        self._router_replay_enabled = self.defer_fp32_logits = False

    @contextmanager
    def use_reference_model(self) -> Iterator[None]:
        self.model, self.reference = self.reference, self.model
        yield
        self.model, self.reference = self.reference, self.model
