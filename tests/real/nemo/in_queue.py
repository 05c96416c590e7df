"""Runs through NeMo-RL's data plane, in this process."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cpu_run
import local_ray
import pytest
import ray
import transfer_queue
from cpu_policy import CpuPolicy, InProcessWorkers
from nemo_rl.algorithms import grpo_sync
from nemo_rl.data_plane.adapters import transfer_queue as adapter
from nemo_rl.models.megatron import common
from nemo_rl.models.policy import tq_policy
from nemo_rl.models.policy.workers import megatron_policy_worker as stock
from no_ray import Actor, Done
from one_model import OneModel
from plugged import Plugged
from ray._private import ray_constants

from nemo_algos.algorithms.build import build
from nemo_algos.engines.nemo import megatron_worker
from nemo_algos.engines.nemo.policy import DataPlaneProxy
from nemo_algos.engines.nemo.trace import Traced

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


def plugged_in_queue(
    path: Path,
    method: dict[str, Any],
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
    correction: dict[str, Any] | None = None,
    overrides: list[str] | None = None,
    traced: Traced = Traced(),
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
    plugged = Plugged(path, method, [*OVERRIDES, *(overrides or [])], correction, mode=mode)
    given = {"folder": path / "traces", "traced": traced}
    plugged.proxy = DataPlaneProxy(plugged.run.policy, plugged.estimator, **given)
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
