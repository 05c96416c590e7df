"""Gradients of the logits through NeMo-RL's own LossPostProcessors, of a loss with entropy terms.

In one of the four ranks of test_entropy.py. Oracle: the embedded engine's loss on the whole logits
in float64.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import nemo_batch
import torch
import torch.distributed as dist
from nemo_rl.algorithms.logits_sampling_utils import TrainingSamplingParams
from nemo_rl.models.automodel import train as automodel
from nemo_rl.models.megatron import train as megatron
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from nemo_algos import Counts, LossConfig, Rollouts, build, policy_loss
from nemo_algos.engines.nemo import dtensor_worker, megatron_worker
from nemo_algos.engines.nemo.entropy_worker import for_the_loss
from nemo_algos.engines.nemo.loss import AlgorithmLoss

LENGTHS, WIDTH, VOCABULARY, MULTIPLE = (5, 9, 16, 3, 12, 7), 16, 38, 4
TERMS = {"entropy": {"coef": 0.3, "aggregation": "sequence"}, "nll": {"coef": 0.2}}
METHODS = ({"name": "grpo", "terms": TERMS}, {"name": "quatro", "terms": TERMS})
JOINED = {"fuse_loss": True}
WORKER = SimpleNamespace(megatron_cfg=SimpleNamespace(model=SimpleNamespace(vocab_size=VOCABULARY)))
MEGATRON = megatron_worker.GradientWorkerImpl.prepared(WORKER)  # pyright: ignore
DTENSOR = dtensor_worker.GradientWorkerImpl.prepared(WORKER)  # pyright: ignore


class Case:
    """One method on given logits [B,S,V]: the batch, the loss, and the gradient that is wanted."""

    def __init__(self, method: dict[str, Any]) -> None:
        random = torch.Generator().manual_seed(3)
        rows = len(LENGTHS)
        self.ids = torch.randint(VOCABULARY, (rows, WIDTH), generator=random)
        self.logits = 3 * torch.randn(rows, WIDTH, VOCABULARY, generator=random)
        whole = self.logits.double().requires_grad_()
        scores = whole[:, :-1].log_softmax(-1)
        logprobs = scores.gather(-1, self.ids[:, 1:, None])[..., 0]
        columns = torch.arange(1, WIDTH)
        noise = 0.1 * torch.randn(rows, WIDTH - 1, generator=random)
        self.algorithm = build(method)
        rollouts = Rollouts(
            group=torch.arange(rows) // 3,
            rewards=torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0]),
            mask=(columns >= 2) & (columns < torch.tensor(LENGTHS)[:, None]),
            old_logprobs=(logprobs.detach() + noise).float(),
        )
        batch = (rollouts, self.algorithm.signals(rollouts), Counts.of(rollouts.mask))
        entropy = -(scores.exp() * scores).sum(-1)
        loss = policy_loss(self.algorithm, logprobs, *batch, LossConfig(), entropy)
        (self.wanted,) = torch.autograd.grad(loss.value, whole)
        self.value = float(loss.value.detach())
        self.data = nemo_batch.batch(self.algorithm, rollouts)
        self.data["input_ids"], self.data["input_lengths"] = self.ids, torch.tensor(LENGTHS)
        self.loss = AlgorithmLoss(nemo_batch.config(), self.algorithm)
        self.counts = nemo_batch.counts(self.data)

    def batch(self) -> Any:
        """A copy that a post-processor may change."""
        return type(self.data)(dict(self.data))


def of_context(x: Tensor, group: Any, dim: int) -> Tensor:
    """A rank's part: of C ranks the chunks r and 2C - 1 - r of 2C."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = x.chunk(2 * size, dim)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]], dim)


def packed(x: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    """[B,S,V] -> [1,T/C,V], each row to a multiple; where they start, [B+1]."""
    padded = [-(-n // MULTIPLE) * MULTIPLE for n in LENGTHS]
    parts = [of_context(row[:n], group, 0) for row, n in zip(x, padded, strict=True)]
    return torch.cat(parts)[None], torch.tensor([0, *padded]).cumsum(0)


def half(x: Tensor, rank: int) -> Tensor:
    """This rank's half of the vocabulary."""
    return x.chunk(2, -1)[rank]


def through_megatron(
    case: Case, rank: int, context: Any, pack: bool, chunk: int | None = None, **cfg: bool
) -> tuple[float, float]:
    """Errors of loss and gradient; rank: of tensor parallelism."""
    section = {"enabled": pack, **cfg}
    sampling = TrainingSamplingParams(top_k=None, top_p=1.0, temperature=1.0)
    processor = megatron.LossPostProcessor(
        case.loss,
        {"sequence_packing": section, "logprob_chunk_size": chunk},  # pyright: ignore
        sampling_params=sampling,
    )
    shard, wanted, params = case.logits, case.wanted, None
    if pack:
        (shard, starts), (wanted, _) = packed(shard, context), packed(wanted, context)
        lengths = torch.tensor([0, *LENGTHS]).cumsum(0)
        params = SimpleNamespace(cu_seqlens_q=lengths, cu_seqlens_q_padded=starts)
    leaf, size = half(shard, rank).contiguous().requires_grad_(), dist.get_world_size(context)
    with for_the_loss(*MEGATRON):
        value, _ = processor(case.batch(), params, *case.counts)(leaf)  # pyright: ignore
    # twice divided by the ranks of context parallelism, of which Megatron's schedule undoes one
    return errors(case, value * size**2, value * size, leaf, half(wanted, rank))


def through_dtensor(case: Case, mesh: DeviceMesh, pack: bool = False) -> tuple[float, float]:
    """The same; mesh: (cp, tp), or (tp,)."""
    tensor, context = mesh.get_group("tp"), "cp" in (mesh.mesh_dim_names or ())
    processor = automodel.LossPostProcessor(
        loss_fn=case.loss,
        cfg={},  # pyright: ignore
        device_mesh=mesh,
        cp_mesh=mesh["cp"] if context else None,
        tp_mesh=mesh["tp"],
        cp_size=2 if context else 1,
        dp_size=1,
        enable_seq_packing=pack,
    )
    data, whole, wanted, starts = case.batch(), case.logits, case.wanted, None
    inputs = SimpleNamespace(cp_buffers=[], seq_index=None)
    if context:
        group = mesh.get_group("cp")
        whole, wanted = of_context(whole, group, 1), of_context(wanted, group, 1)
        data["input_ids"] = of_context(case.ids, group, 1)
        positions = of_context(torch.arange(WIDTH)[None], group, 1)
        inputs = SimpleNamespace(cp_buffers=[data["input_ids"], positions], seq_index=positions)
    if pack:
        rows = zip(whole, wanted, LENGTHS, strict=True)
        parts = [(x[:n], y[:n]) for x, y, n in rows]
        whole, wanted = (torch.cat(x)[None] for x in zip(*parts, strict=True))
        starts = torch.tensor([0, *LENGTHS]).cumsum(0)
    inputs.flash_attn_kwargs = SimpleNamespace(cu_seqlens_q=starts)
    rank = dist.get_rank(tensor)
    leaf = half(whole, rank).contiguous().requires_grad_()
    sharded = DTensor.from_local(leaf, mesh["tp"], [Shard(-1)])
    with for_the_loss(*DTENSOR):
        value, _ = processor(sharded, data, inputs, *case.counts)  # pyright: ignore
    return errors(case, value, value, leaf, half(wanted, rank))


def through_one_process(case: Case) -> tuple[float, float]:
    """Logits that are no DTensor."""
    leaf = case.logits.clone().requires_grad_()
    inputs = SimpleNamespace(flash_attn_kwargs=None)
    made = automodel.LossPostProcessor(case.loss, {}, None, None, None, 1, 1)  # pyright: ignore
    with for_the_loss(*DTENSOR):
        value, _ = made(leaf, case.batch(), inputs, *case.counts)  # pyright: ignore
    return errors(case, value, value, leaf, case.wanted)


def errors(
    case: Case, reported: Tensor, value: Tensor, leaf: Tensor, wanted: Tensor
) -> tuple[float, float]:
    """Of the loss, and the largest of a gradient."""

    def unpinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        return made(*args, **kwargs)

    made = torch.tensor
    with mock.patch.object(torch, "tensor", unpinned):  # NeMo-RL pins an index, which asks for CUDA
        (gradient,) = torch.autograd.grad(value, leaf)
    return abs(float(reported.detach()) - case.value), float((gradient - wanted).abs().max())


def found(
    rank: int, context: Any, alone: Any, mesh: DeviceMesh, set_groups: Any
) -> Iterator[tuple[str, tuple[float, float]]]:
    """The errors by layout and method; mesh: 2 ranks of context x 2 of tensor parallelism."""
    for method in METHODS:
        case = Case(method)

        def named(name: str, value: Any, case: Case = case) -> tuple[str, Any]:
            return f"{name} {case.algorithm.base.method.name}", value

        set_groups(context=context)
        for name, chunk, cfg in (("packed", None, {}), ("chunks", 3, {}), ("joined", None, JOINED)):
            found = through_megatron(case, rank % 2, context, True, chunk, **cfg)
            yield named(f"megatron context {name}", found)
        set_groups(context=alone)
        for name, chunk in (("plain", None), ("chunks", 3)):
            yield named(f"megatron {name}", through_megatron(case, rank % 2, alone, False, chunk))
        yield named("dtensor context", through_dtensor(case, mesh))
        yield named("dtensor tensor", through_dtensor(case, mesh["tp"]))
        yield named("dtensor packed", through_dtensor(case, mesh["tp"], True))
        yield named("dtensor plain", through_one_process(case))
