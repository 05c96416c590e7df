"""Processes forked from one that has imported everything, and NeMo-RL's worker group over them.

Importing the workers takes half a minute, a case some seconds. `Forked` holds an object in a child
and calls its methods; `install` (in the driver's child) makes NeMo-RL's Policy place its workers
so. Sharding, packing, gathering and reordering stay its own; Ray's actors and futures are these.
"""

import ctypes
import gc
import importlib
import multiprocessing
import os
import signal
import socket
import traceback
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ray
import torch

CONTEXT = multiprocessing.get_context("fork")
LIMIT = 600.0  # seconds for one answer


class Future:
    """One call's answer."""

    def __init__(self, process: "Forked") -> None:
        self.process, self.done, self.value = process, False, None

    def get(self) -> Any:
        """Raises RuntimeError with the child's traceback."""
        while not self.done:
            self.process.receive()
        if isinstance(self.value, _Failure):
            raise RuntimeError(self.value.text)
        return self.value


class _Failure:
    def __init__(self) -> None:
        self.text = traceback.format_exc()


class Forked:
    """An object that `make()` builds in a child of this process; one call at a time, in order."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.pipe, there = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_serve, args=(make, there), daemon=False)
        self.process.start()
        there.close()
        self.built = Future(self)
        self.waiting = deque([self.built])

    def call(self, method: str, *args: Any, **kwargs: Any) -> Future:
        self.pipe.send_bytes(ray.cloudpickle.dumps((method, args, kwargs)))
        self.waiting.append(Future(self))
        return self.waiting[-1]

    def receive(self) -> None:
        if not self.pipe.poll(LIMIT):
            raise TimeoutError(f"no answer in {LIMIT:.0f} s")
        future = self.waiting.popleft()
        try:
            future.value = ray.cloudpickle.loads(self.pipe.recv_bytes())
        except EOFError:
            self.process.join(5)
            raise RuntimeError(f"the child ended with {self.process.exitcode}") from None
        future.done = True

    def end(self) -> None:
        self.process.kill()
        self.process.join()

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args, **kwargs: self.call(name, *args, **kwargs))


def _serve(make: Callable[[], Any], pipe: Any) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with its parent
    torch.set_num_threads(1)
    gc.freeze()  # NeMo-RL's workers collect at each change of phase: what was imported, every time
    target = None
    while True:
        try:
            if target is None:
                target, answer = make(), None
            else:
                method, args, kwargs = ray.cloudpickle.loads(pipe.recv_bytes())
                answer = getattr(target, method)(*args, **kwargs)
        except EOFError:
            os._exit(0)
        except BaseException:
            answer = _Failure()
        pipe.send_bytes(ray.cloudpickle.dumps(answer))
        if target is None:
            os._exit(1)


def _worker(name: str, args: Any, kwargs: dict[str, Any], rank: int, env: dict[str, str]) -> Any:
    """The worker's own class, where NeMo-RL names Ray's wrapper of it."""
    os.environ.update(env | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    ray.get_gpu_ids = lambda: [rank]
    module, _, attribute = name.rpartition(".")
    actor = getattr(importlib.import_module(module), attribute)
    return actor.__ray_metadata__.modified_class(*args, **kwargs)


def install() -> None:
    """In this process, which does nothing else: NeMo-RL's Policy has its children for workers."""
    from nemo_rl.distributed.worker_groups import RayWorkerGroup
    from nemo_rl.models.policy import lm_policy

    class ForkedWorkerGroup(RayWorkerGroup):
        def _create_workers_from_bundle_indices(
            self, builder: Any, indices: list[Any], env_vars: dict[str, str] | None = None
        ) -> None:
            self.world_size = len(indices)
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            env = {k: str(v) for k, v in (env_vars or {}).items()} | rendezvous
            env |= {"WORLD_SIZE": str(len(indices)), "NODE_RANK": "0"}
            for rank in range(len(indices)):
                made = (builder.ray_actor_class_fqn, builder.args, builder.kwargs, rank, env)
                self._workers.append(Forked(lambda made=made: _worker(*made)))
                self._worker_metadata.append({"dp_shard_idx": rank, "global_rank": rank})
                self.dp_leader_worker_indices.append(rank)
            try:
                get([worker.built for worker in self._workers])
            except BaseException:
                self.shutdown()
                raise

    ray.get, ray.put, ray.kill = get, lambda value: value, Forked.end
    lm_policy.RayWorkerGroup = ForkedWorkerGroup
    lm_policy.RayQueue = lambda: None


def get(refs: Any, **_: Any) -> Any:
    """ray.get; what is no future is its own value."""
    if isinstance(refs, list):
        return [get(ref) for ref in refs]
    return refs.get() if isinstance(refs, Future) else refs


def cluster(ranks: int) -> Any:
    """What Policy asks of a RayVirtualCluster: one node of children of this process."""
    install()
    return SimpleNamespace(
        world_size=lambda: ranks,
        get_placement_groups=lambda: [SimpleNamespace(bundle_count=ranks)],
        num_gpus_per_node=ranks,
        _sorted_bundle_indices=None,
    )
