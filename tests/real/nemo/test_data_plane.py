"""NeMo-RL's own grpo_train_sync over a real TransferQueue, whose actors run in a local Ray.

In this process instead of in Ray actors: the rollout actor (its own class, undecorated) and the
policy's workers (NeMo-RL's MegatronPolicyWorkerImpl for fetching, log-probs and writing back, over
cpu_policy's model and its training loop). Left out: NeMo-RL's pip environment for the queue's
actors. Oracle: grpo_train on the same seeds.
"""

import functools
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import cpu_run
import local_ray
import pytest
import torch
import transfer_queue
from cpu_policy import CpuPolicy, InProcessWorkers, OneModel
from launched import launched
from nemo_rl.algorithms import grpo_sync
from nemo_rl.data_plane import column_io
from nemo_rl.data_plane.adapters import transfer_queue as adapter
from nemo_rl.models.megatron import common
from nemo_rl.models.policy import tq_policy
from nemo_rl.models.policy.workers import megatron_policy_worker as stock
from no_ray import Actor, Done
from plugged import CORRECTIONS, METHODS, SHAPED, STEPS, UPDATES, Plugged, off
from rounding import rounding
from test_remarks import assert_told, rewards_end

from nemo_algos.algorithms.build import build
from nemo_algos.engines.nemo import columns, megatron_worker
from nemo_algos.engines.nemo.patches import previous_logprobs_skipped
from nemo_algos.engines.nemo.policy import DataPlaneProxy, columns_registered
from nemo_algos.engines.nemo.trace import Traced
from nemo_algos.jsonl import read_lines
from nemo_algos.lab.evals.records import TraceLine

pytestmark = pytest.mark.usefixtures("queue_cluster", "in_process")
TRACED = Traced(2, 2, 3, str)
IN_QUEUE = ["data_plane.enabled=true", "data_plane.storage_capacity=1000"]
# method, mode, correction, overrides
CASES: dict[str, tuple[dict[str, Any], str, Any, list[str]]] = {
    "etr": (METHODS["etr"], "unpacked", None, []),
    "erpo": (METHODS["erpo"], "fused", None, []),
    "nll": ({"name": "grpo", "terms": {"nll": {}}}, "unpacked", None, []),
    "shaped": (METHODS["etr"], "unpacked", None, SHAPED),
    **{
        label: (METHODS["etr"], "unpacked", correction, [])
        for label, correction in CORRECTIONS.items()
    },
}


@pytest.fixture(scope="module")
def queue_cluster() -> Iterator[None]:
    with local_ray.running(num_cpus=4):
        yield
        transfer_queue.close()


class Rank(OneModel):
    """One data-parallel rank: what differs from NeMo-RL's worker."""

    def __init__(self, workers: "QueueWorkers") -> None:
        super().__init__(workers)
        self.tokenizer = cpu_run.tokenizer()
        self.fetched: Any = None

    def _get_replica_group(self) -> None:
        """No siblings."""

    def train(self, data: Any, **_: Any) -> None:
        self.fetched = data


class QueueWorkers(InProcessWorkers):
    """Methods on a KVBatchMeta go to ranks; they train together, in InProcessWorkers' loop."""

    def attach(self, kind: type) -> None:
        of_rank = type("QueueRank", (Rank, kind), {})
        self.members = [of_rank(self) for _ in range(self.ranks)]
        self.trained: list[set[str]] = []

    def setup_data_plane(self, cfg: Any) -> None:
        for member in self.members:
            member.setup_data_plane(cfg)

    def run_all_workers_sharded_data(  # pyright: ignore
        self, method: str, *, meta: list[Any] | None = None, **kwargs: Any
    ) -> Done:
        if meta is None:
            return super().run_all_workers_sharded_data(method, **kwargs)
        common_kwargs = kwargs["common_kwargs"]
        assert len(meta) == self.ranks
        for member, part in zip(self.members, meta, strict=True):
            assert getattr(member, method)(part, **common_kwargs) is None
        if method != "train_presharded":
            return Done([None] * self.ranks)
        shards = [member.fetched for member in self.members]
        self.trained.append(set(shards[0]))
        return Done(self.train(shards, **common_kwargs))


class QueuePolicy(tq_policy.TQPolicy, CpuPolicy):
    """NeMo-RL's TQPolicy over QueueWorkers."""


class InProcessRollouts:
    """SyncRolloutActor in this process."""

    @staticmethod
    def options(**_: Any) -> type["InProcessRollouts"]:
        return InProcessRollouts

    @staticmethod
    def remote(**kwargs: Any) -> Actor:
        return Actor(SYNC_ROLLOUT(**kwargs))


SYNC_ROLLOUT = grpo_sync.SyncRolloutActor.__ray_metadata__.modified_class


def in_queue(path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> Plugged:
    """As launch.py: TQPolicy, its proxy, and the extension where the method needs entropies."""
    method, mode, correction, overrides = CASES[case]
    entropies = "entropy" in build(method).needs
    kind = megatron_worker.EntropyWorkerImpl if entropies else stock.MegatronPolicyWorkerImpl
    queued(monkeypatch, kind)
    plugged = Plugged(path, method, [*IN_QUEUE, *overrides], correction, mode=mode)
    folder = path / "traces"
    plugged.proxy = DataPlaneProxy(
        plugged.run.policy, plugged.estimator, folder=folder, traced=TRACED
    )
    return plugged


def queued(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """A run's policy is NeMo-RL's TQPolicy over this kind of worker, and its rollouts are here."""

    def workers(*args: Any) -> QueueWorkers:
        made = QueueWorkers(*args)
        made.attach(kind)
        return made

    config = cpu_run.load_config(IN_QUEUE).data_plane
    monkeypatch.setattr("cpu_policy.InProcessWorkers", workers)
    monkeypatch.setattr(cpu_run, "CpuPolicy", functools.partial(QueuePolicy, dp_cfg=config))
    monkeypatch.setattr(common, "broadcast_tensor", lambda tensor, *_: tensor)  # asks for CUDA
    monkeypatch.setattr(adapter, "_patch_tq_actor_runtime_env", lambda: None)
    monkeypatch.setattr(grpo_sync, "SyncRolloutActor", InProcessRollouts)
    monkeypatch.setattr(grpo_sync, "make_actor_runtime_env", lambda _: {}, raising=False)


@pytest.mark.parametrize("case", CASES)
def test_the_queue_trains_and_traces_what_grpo_train_does(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, mode, correction, overrides = CASES[case]
    folders = (tmp_path / "other", tmp_path / "queue")
    other = Plugged(folders[0], method, overrides, correction, mode=mode, traced=TRACED)
    plugged = in_queue(folders[1], case, monkeypatch)
    if correction:
        for run in (other.run, plugged.run):
            run.generation.generate = off(run.generation.generate)
    bypass = other.algorithm.correction.bypass_mode
    with previous_logprobs_skipped() if bypass else nullcontext():
        other.train()
    policy = plugged.run.policy
    policy.get_logprobs_from_meta = mock.Mock(wraps=policy.get_logprobs_from_meta)
    fields = tq_policy.DP_TRAIN_FIELDS
    aligned = column_io.TOKEN_ALIGNED_FIELDS
    with columns_registered(plugged.estimator):
        plugged.train(trainer=grpo_sync.grpo_train_sync)
    assert tq_policy.DP_TRAIN_FIELDS is fields
    assert getattr(grpo_sync, "DP_TRAIN_FIELDS", fields) is fields  # main has a copy there
    assert column_io.TOKEN_ALIGNED_FIELDS is aligned
    assert policy.get_logprobs_from_meta.call_count == (0 if bypass else STEPS)

    signals = set(columns.names(plugged.algorithm).values())
    assert signals or case == "erpo"
    for fetched in policy.workers.trained:
        assert {k for k in fetched if k.startswith(columns.PREFIX)} == signals
    assert len(policy.workers.trained) == STEPS == len(plugged.estimator.calls)
    near = rounding(STEPS * UPDATES)
    for ours, theirs in zip(plugged.estimator.calls, other.estimator.calls, strict=True):
        width = min(ours["advantages"].shape[1], theirs["advantages"].shape[1])
        advantages = (call["advantages"][:, :width] for call in (ours, theirs))
        torch.testing.assert_close(*advantages, rtol=near, atol=near)
    metrics = {"loss", "clip/fraction", "ratio/mean", *other.estimator.calls[0]["metrics"]}
    metrics |= {f"terms/{added.term.name}" for added in plugged.algorithm.terms}
    if not bypass:
        metrics |= {"mismatch/mean", "mismatch/p99", "mismatch/share_above"}
    if correction:
        metrics |= {"correction/rejected_tokens"}
    for metric in metrics:
        got, want = plugged.series("train", metric), other.series("train", metric)
        assert got == pytest.approx(want, rel=near, abs=near), metric
    torch.testing.assert_close(plugged.weights(), other.weights(), rtol=0, atol=near)

    sides = [[*read_lines(folder / "traces/trace.jsonl", TraceLine)] for folder in folders]
    assert [row["step"] for row in sides[1]] == [1] * 8 + [2] * 8 + [3] * 8
    for theirs, ours in zip(*sides, strict=True):
        nulls = [key for key, value in theirs.items() if value is None]
        for key in ("step", "group", "prompt", "tokens", "reward", "cut"):
            assert ours[key] == theirs[key], key
        assert [key for key, value in ours.items() if value is None] == nulls
        for key in {"entropy", "advantage", "ratio", "low", "high"} - {*nulls}:
            assert ours[key] == pytest.approx(theirs[key], rel=near, abs=near), key
    assert any(abs(r - 1) > 0.05 for row in sides[1] for r in row["ratio"])


def test_rewards_that_end_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    queued(monkeypatch, stock.MegatronPolicyWorkerImpl)
    rewards_end(monkeypatch)
    launched(tmp_path, monkeypatch, steps=6, mode="unpacked", overrides=IN_QUEUE)
    assert_told(capsys.readouterr().out)
