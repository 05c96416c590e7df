"""NeMo-RL's own grpo_train_sync over a real TransferQueue, whose actors run in a local Ray.

In this process instead of in Ray actors: the rollout actor (its own class, undecorated) and the
policy's workers (NeMo-RL's MegatronPolicyWorkerImpl for fetching, log-probs and writing back, over
cpu_policy's model and its training loop). Left out: NeMo-RL's pip environment for the queue's
actors. Oracle: grpo_train on the same seeds.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cpu_run
import local_ray
import pytest
import ray
import torch
import transfer_queue
from cpu_policy import CpuPolicy, InProcessWorkers
from nemo_rl.algorithms import grpo_sync
from nemo_rl.data_plane import column_io
from nemo_rl.data_plane.adapters import transfer_queue as adapter
from nemo_rl.models.megatron import common
from nemo_rl.models.policy import tq_policy
from nemo_rl.models.policy.workers import megatron_policy_worker as stock
from no_ray import Actor, Done
from ray._private import ray_constants
from rounding import rounding
from test_entropy import OneModel
from test_grpo_train import METHODS, STEPS, UPDATES, Plugged

from nemo_algos.algorithms.build import build
from nemo_algos.engines.nemo import columns, megatron_worker
from nemo_algos.engines.nemo.estimator import Estimator
from nemo_algos.engines.nemo.policy import ENTROPY, DataPlaneProxy, columns_registered

pytestmark = pytest.mark.usefixtures("queue_cluster", "in_process")
OVERRIDES = ["data_plane.enabled=true", "data_plane.storage_capacity=1000"]


@pytest.fixture(scope="module")
def queue_cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", False, raising=False)
        local_ray.start(num_cpus=4)
        yield
        transfer_queue.close()
        ray.shutdown()


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
        self, method: str, *, meta: list[Any], common_kwargs: dict[str, Any], **_: Any
    ) -> Done:
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


def plugged_in_queue(
    path: Path,
    method: dict[str, Any],
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
    correction: dict[str, Any] | None = None,
) -> Plugged:
    """As launch.py: TQPolicy, its proxy, and the extension where the method needs entropies."""
    entropies = "entropy" in build(method).needs
    kind = megatron_worker.EntropyWorkerImpl if entropies else stock.MegatronPolicyWorkerImpl

    def workers(*args: Any) -> QueueWorkers:
        made = QueueWorkers(*args)
        made.attach(kind)
        return made

    config = cpu_run.load_config(OVERRIDES).data_plane
    monkeypatch.setattr("cpu_policy.InProcessWorkers", workers)
    monkeypatch.setattr(cpu_run, "CpuPolicy", functools.partial(QueuePolicy, dp_cfg=config))
    monkeypatch.setattr(common, "broadcast_tensor", lambda tensor, *_: tensor)  # asks for CUDA
    monkeypatch.setattr(adapter, "_patch_tq_actor_runtime_env", lambda: None)
    plugged = Plugged(path, method, OVERRIDES, correction, mode=mode)
    plugged.proxy = DataPlaneProxy(plugged.run.policy, plugged.estimator)
    return plugged


class InProcessRollouts:
    """SyncRolloutActor in this process."""

    @staticmethod
    def options(**_: Any) -> type["InProcessRollouts"]:
        return InProcessRollouts

    @staticmethod
    def remote(**kwargs: Any) -> Actor:
        return Actor(SYNC_ROLLOUT(**kwargs))


SYNC_ROLLOUT = grpo_sync.SyncRolloutActor.__ray_metadata__.modified_class


@pytest.mark.parametrize(
    ("name", "mode"),
    [("etr", "unpacked"), ("erpo", "fused"), ("nll", "unpacked")],
)
def test_the_queue_trains_what_grpo_train_does(
    name: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = METHODS.get(name, {"name": "grpo", "terms": {"nll": {}}})
    other = Plugged(tmp_path / "other", method, [], mode=mode).train()
    plugged = plugged_in_queue(tmp_path / "queue", method, mode, monkeypatch)
    monkeypatch.setattr(grpo_sync, "SyncRolloutActor", InProcessRollouts)
    monkeypatch.setattr(grpo_sync, "make_actor_runtime_env", lambda _: {}, raising=False)
    fields = tq_policy.DP_TRAIN_FIELDS
    aligned = column_io.TOKEN_ALIGNED_FIELDS
    with columns_registered(plugged.estimator):
        plugged.train(trainer=grpo_sync.grpo_train_sync)
    assert tq_policy.DP_TRAIN_FIELDS is fields
    assert getattr(grpo_sync, "DP_TRAIN_FIELDS", fields) is fields  # main has a copy there
    assert column_io.TOKEN_ALIGNED_FIELDS is aligned

    signals = set(columns.names(plugged.estimator.algorithm).values())
    assert signals or name in ("grpo", "quatro", "erpo")
    for fetched in plugged.run.policy.workers.trained:
        assert {k for k in fetched if k.startswith(columns.PREFIX)} == signals
    assert len(plugged.run.policy.workers.trained) == 3 == len(plugged.estimator.calls)
    near = rounding(STEPS * UPDATES)
    for ours, theirs in zip(plugged.estimator.calls, other.estimator.calls, strict=True):
        width = min(ours["advantages"].shape[1], theirs["advantages"].shape[1])
        advantages = (call["advantages"][:, :width] for call in (ours, theirs))
        torch.testing.assert_close(*advantages, rtol=near, atol=near)
    metrics = ("loss", "clip/fraction", "ratio/mean", *other.estimator.calls[0]["metrics"])
    metrics += ("mismatch/mean", "mismatch/p99", "mismatch/share_above")
    metrics += tuple(f"terms/{added.term.name}" for added in plugged.algorithm.terms)
    for metric in metrics:
        got, want = plugged.series("train", metric), other.series("train", metric)
        assert got == pytest.approx(want, rel=near, abs=near), metric
    torch.testing.assert_close(plugged.weights(), other.weights(), rtol=0, atol=near)


def test_without_registered_columns_the_queue_loses_the_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What columns_registered is for: workers fetch a fixed list of columns."""
    plugged = plugged_in_queue(tmp_path, METHODS["apmpo"], "unpacked", monkeypatch)
    monkeypatch.setattr(grpo_sync, "SyncRolloutActor", InProcessRollouts)
    monkeypatch.setattr(grpo_sync, "make_actor_runtime_env", lambda _: {}, raising=False)
    with pytest.raises(KeyError, match="nemo_algos_signal_low"):
        plugged.train(trainer=grpo_sync.grpo_train_sync)


def test_columns_are_those_of_the_method() -> None:
    """Also the entropy's, which the extension writes and the driver reads."""
    for name, method in METHODS.items():
        estimator = Estimator(build(method))
        with columns_registered(estimator):
            added = set(tq_policy.DP_TRAIN_FIELDS) & column_io.TOKEN_ALIGNED_FIELDS
            added = {field for field in added if field.startswith("nemo_algos")}
        entropy = {ENTROPY} if name == "erpo" else set()
        assert added == {*columns.names(estimator.algorithm).values(), *entropy}
