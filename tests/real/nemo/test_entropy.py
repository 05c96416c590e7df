"""Exact token entropies out of NeMo-RL's own Megatron post-processor, over gloo ranks.

Four processes: 2 ranks of tensor parallelism x 2 of context parallelism, packed; 2 of tensor
parallelism, unpacked. Oracle: a dense log-softmax of the whole logits. Then the worker extension
itself, over NeMo-RL's own get_logprobs and cpu_policy's model.
"""

import functools
import inspect
import multiprocessing
import os
import queue
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import stubs
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

stubs.install()  # again: the ranks import this file without conftest.py

import entropy_gradients  # noqa: E402
from cpu_policy import OneModel  # noqa: E402
from cpu_run import MODES, Run  # noqa: E402
from nemo_rl.distributed import model_utils  # noqa: E402
from nemo_rl.distributed.batched_data_dict import BatchedDataDict  # noqa: E402
from nemo_rl.models.megatron import common, train  # noqa: E402
from nemo_rl.models.policy.workers import megatron_policy_worker as stock  # noqa: E402

from nemo_algos.engines.nemo import megatron_worker  # noqa: E402

LENGTHS, WIDTH, MULTIPLE = (5, 9, 16, 3, 12), 18, 4
REAL, VOCABULARY = (
    35,
    38,
)  # padded by Megatron to a multiple of the ranks; NeMo-RL counts those rows
NEAR = 2e-5


def dense(logits: Tensor, ids: Tensor, vocabulary: int = REAL) -> tuple[Tensor, Tensor]:
    """[B,S,V] -> entropies and log-probs [B,S] at the tokens that they are of."""
    real = logits[..., :vocabulary].log_softmax(-1)
    entropy = -(real.exp() * real).sum(-1)
    chosen = logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    return tuple(torch.nn.functional.pad(x, (1, 0)) for x in (entropy[:, :-1], chosen))


def errors(entropy: Tensor, logprobs: Tensor, logits: Tensor, ids: Tensor) -> tuple[float, float]:
    """The largest of entropies, which are 0 beyond the sequences, and of log-probs within them."""
    valid = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]
    of_entropy, of_logprobs = dense(logits, ids)
    assert entropy.shape == ids.shape
    beyond_too = (entropy - of_entropy.where(valid, 0.0)).abs().max()
    return float(beyond_too), float((logprobs - of_logprobs)[valid].abs().max())


def of_rank(
    logits: Tensor, ids: Tensor, packing: bool, chunk: int | None, tensor_rank: int, context: Any
) -> tuple[float, float]:
    """What the post-processor makes of this rank's shard of the logits [B,S,V]."""
    cfg = {"sequence_packing": {"enabled": packing}, "logprob_chunk_size": chunk}
    sink: list[Tensor] = []
    processor = megatron_worker.EntropyPostProcessor(cfg, sink=sink, vocabulary=REAL, fused=[])
    half = VOCABULARY // 2
    shard = logits[..., tensor_rank * half : (tensor_rank + 1) * half]
    starts, packed = torch.zeros(1), torch.zeros(1, 0)
    if packing:
        padded = [-(-n // MULTIPLE) * MULTIPLE for n in LENGTHS]
        starts = torch.tensor([0, *padded]).cumsum(0)
        wide = torch.nn.functional.pad(ids, (0, MULTIPLE))
        packed = torch.cat([row[:n] for row, n in zip(wide, padded, strict=True)])[None]
        shard = torch.nn.functional.pad(shard, (0, 0, 0, MULTIPLE))
        rows = zip(shard, padded, strict=True)
        parts = [entropy_gradients.of_context(row[:n], context, 0) for row, n in rows]
        shard = torch.cat(parts)[None]
    data = {"input_ids": ids, "input_lengths": torch.tensor(LENGTHS)}
    _, out = processor(data, packed, starts)(shard.contiguous())
    (entropy,) = sink
    return errors(entropy, out["logprobs"], logits, ids)


def of_hidden_states(ids: Tensor, tensor: Any) -> tuple[float, float]:
    """The same where NeMo-RL's forward returns log-probs.

    Hidden states are sharded over the sequence [S/TP,B,H], the output layer over the vocabulary.
    """
    rank, half = dist.get_rank(tensor), VOCABULARY // 2
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(len(LENGTHS), WIDTH, 6, generator=generator)
    weight = torch.randn(VOCABULARY, 6, generator=generator)
    name = next(
        k for k in inspect.signature(train.LogprobsPostProcessor).parameters if "linear" in k
    )
    sink: list[Tensor] = []
    cfg = {"sequence_packing": {"enabled": False}}
    with megatron_worker.hidden_state_entropies(REAL) as fused:
        processor = megatron_worker.EntropyPostProcessor(
            cfg, sink=sink, vocabulary=REAL, fused=fused, **{name: True}
        )
        output = model_utils.from_parallel_hidden_states_to_logprobs(
            hidden.transpose(0, 1).chunk(2)[rank].contiguous(),
            weight[rank * half : (rank + 1) * half],
            None,
            ids,
            vocab_start_index=rank * half,
            vocab_end_index=(rank + 1) * half,
            tp_group=tensor,
            inference_only=True,
            chunk_size=5,
        )
        data = {"input_ids": ids, "input_lengths": torch.tensor(LENGTHS)}
        _, out = processor(data, torch.zeros(1, 0), torch.zeros(1))(output)
    assert not fused
    return errors(sink[0], out["logprobs"], hidden @ weight.T, ids)


def of_dtensor(vocabulary: int, ids: Tensor, mesh: DeviceMesh) -> float:
    """The error of NeMo-RL's log-probs of logits that DTensor shards over the vocabulary."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(*ids.shape, vocabulary, generator=generator)
    sharded = distribute_tensor(logits, mesh, [Shard(-1)])
    got = model_utils.get_logprobs_from_vocab_parallel_logits(sharded, ids % vocabulary)
    return float((got - dense(logits, ids % vocabulary)[1][:, 1:]).abs().max())


def run_rank(rank: int, store: str, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    stubs.cuda_is_cpu(pytest.MonkeyPatch())
    tensor, context, alone = None, None, None
    for ranks in ([0, 1], [2, 3]):
        made = dist.new_group(ranks)
        tensor = made if rank in ranks else tensor
    for ranks in ([0, 2], [1, 3]):
        made = dist.new_group(ranks)
        context = made if rank in ranks else context
    for ranks in ([0], [1], [2], [3]):
        made = dist.new_group(ranks)
        alone = made if rank in ranks else alone
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (len(LENGTHS), WIDTH), generator=generator)
    logits = 3 * torch.randn(len(LENGTHS), WIDTH, VOCABULARY, generator=generator)
    found = {}
    stubs.set_groups(tensor_model=tensor, context=context)
    for chunk in (None, 3):
        found[f"packed {chunk}"] = of_rank(logits, ids, True, chunk, rank % 2, context)
    stubs.set_groups(context=alone)
    for chunk in (None, 3):
        found[f"unpacked {chunk}"] = of_rank(logits, ids, False, chunk, rank % 2, alone)
    found["fused"] = of_hidden_states(ids, tensor)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
    found["dtensor"] = tuple(of_dtensor(vocabulary, ids, mesh) for vocabulary in (12, 11))
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    groups = (context, alone, both, stubs.set_groups)
    found |= {f"gradient {k}": v for k, v in entropy_gradients.found(rank, *groups)}
    results.put((rank, found))
    dist.barrier()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[float, float]]]:
    """Each rank's errors by case."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # one import for the four
    store, results = tmp_path_factory.mktemp("ranks") / "store", context.Queue()
    ranks = [context.Process(target=run_rank, args=(r, str(store), results)) for r in range(4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        for process in ranks:
            process.start()
    try:
        answers = dict(results.get(timeout=300) for _ in ranks)
    except queue.Empty:
        pytest.fail(f"exit codes {[p.exitcode for p in ranks]}")
    finally:
        for process in ranks:
            process.join(30)
            process.kill()
    return [answers[rank] for rank in range(4)]


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("layout", ["packed", "unpacked"])
def test_entropies_are_exact_on_every_rank(layout: str, chunk: int | None, found: Any) -> None:
    for rank in found:
        entropy, logprobs = rank[f"{layout} {chunk}"]
        assert entropy < NEAR and logprobs < NEAR


def test_entropies_of_hidden_states_are_exact_on_every_rank(found: Any) -> None:
    for rank in found:
        entropy, logprobs = rank["fused"]
        assert entropy < NEAR and logprobs < NEAR


def test_gradients_of_entropy_terms_are_the_embedded_engines_on_every_rank(found: Any) -> None:
    """Through NeMo-RL's own post-processors of its loss, Megatron's and DTensor's."""
    for rank in found:
        apart = {k: v for k, v in rank.items() if k.startswith("gradient ")}
        assert len(apart) == 18
        assert {k: v for k, v in apart.items() if max(v) > 1e-6} == {}


def test_log_probs_of_a_vocabulary_that_does_not_split_are_wrong(found: Any) -> None:
    """DTensor's, in silence: `nemo-algos check` refuses it."""
    for rank in found:
        even, uneven = rank["dtensor"]
        assert even < NEAR and uneven > 0.5


class OneWorker(OneModel, megatron_worker.EntropyWorkerImpl):
    """The extension over NeMo-RL's own get_logprobs."""


def _every_shard(method, shards, **_):
    return [method(data=shard) for shard in shards]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("in_process")
def test_the_worker_returns_entropies_with_the_policys_logprobs_only(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through NeMo-RL's Policy: 2 ranks, sharding, packing and reordering."""
    monkeypatch.setattr(common, "broadcast_tensor", lambda tensor, *_: tensor)  # asks for CUDA
    run = Run(tmp_path, mode=mode)
    worker = OneWorker(run.policy.workers)
    with torch.no_grad():
        for parameter in worker.reference.parameters():
            parameter.mul_(1.1)
    for name in ("get_logprobs", "get_reference_policy_logprobs"):
        method = getattr(worker, name)
        every_shard = functools.partial(_every_shard, method)
        monkeypatch.setattr(run.policy.workers, name, every_shard)
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([7, 20, 4, 12, 17, 9, 30, 11])
    ids = torch.randint(8, 64, (8, 32), generator=generator)
    ids = ids.where(torch.arange(32) < lengths[:, None], 0)
    data = BatchedDataDict({"input_ids": ids, "input_lengths": lengths})
    data |= {"token_mask": torch.ones(8, 32), "sample_mask": torch.ones(8)}
    recording = Mock(wraps=megatron_worker.recording)
    monkeypatch.setattr(megatron_worker, "recording", recording)
    out = run.policy.get_logprobs(data)
    assert recording.call_count == run.policy.workers.ranks
    reference = run.policy.get_reference_policy_logprobs(data)
    assert recording.call_count == run.policy.workers.ranks  # of the policy's forward alone
    assert set(out) == {"logprobs", "entropies"} and set(reference) == {"reference_logprobs"}
    assert stock.LogprobsPostProcessor is train.LogprobsPostProcessor
    columns = torch.arange(32)
    valid = (columns < lengths[:, None]) & (columns > 0)
    entropy, logprobs = dense(worker.model.model(ids).logits.detach(), ids, 64)
    _, of_reference = dense(worker.reference.model(ids).logits.detach(), ids, 64)
    for got, want in (
        (out["entropies"], entropy),
        (out["logprobs"], logprobs),
        (reference["reference_logprobs"], of_reference),
    ):
        assert got.shape == ids.shape and (got[:, 0] == 0).all()
        assert got is not out["entropies"] or not got[columns >= lengths[:, None]].any()
        assert (got - want)[valid].abs().max() < NEAR
    assert entropy[valid].std() > 0.05 and (logprobs - of_reference)[valid].abs().max() > 0.05
