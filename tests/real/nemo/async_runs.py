"""Runs of NeMo-RL's asynchronous trainer, in this process."""

from pathlib import Path
from typing import Any

import pytest
from nemo_rl.algorithms import async_utils, grpo
from no_ray import Actor, Done
from plugged import METHODS, Plugged

OVERRIDES = [
    "loss_fn.use_importance_sampling_correction=true",
    "grpo.async_grpo.enabled=true",
    "grpo.async_grpo.max_trajectory_age_steps=1",
    "policy.generation.colocated.enabled=false",
    "policy.generation.colocated.resources.num_nodes=1",
    "policy.generation.colocated.resources.gpus_per_node=1",
    "cluster.gpus_per_node=2",
    "policy.generation.vllm_cfg.async_engine=true",
]


ONE_UPDATE = ["policy.train_global_batch_size=16"]


def in_this_process(actor: Any) -> Any:
    """A Ray actor class as one that lives here: `.options(...).remote(...)`."""
    inner = actor.__ray_metadata__.modified_class

    class Here:
        options = staticmethod(lambda **_: Here)
        remote = staticmethod(lambda *args, **kwargs: Actor(inner(*args, **kwargs)))

    return Here


def awaited(done: Done) -> Any:
    """The collector awaits Ray's futures; these are finished."""
    yield from ()
    return done.value


def stop(actor: Actor) -> None:
    """For ray.kill: the collector's threads end before Ray's stand-ins do."""
    target = actor._target
    if not hasattr(target, "collection_thread"):
        return
    target.running = False
    for event in ("_manual_pause_cleared", "_refit_pause_cleared", "_generation_limit_cleared"):
        if hasattr(target, event):
            getattr(target, event).set()
    for thread in (target.collection_thread, *target._inflight_threads):
        thread.join(300)
        assert not thread.is_alive()


def trained(
    path: Path, name: str, mode: str, patch: pytest.MonkeyPatch, overrides: list[str]
) -> Plugged:
    patch.setattr(Done, "__await__", awaited, raising=False)
    for actor in ("ReplayBuffer", "AsyncTrajectoryCollector"):
        patch.setattr(async_utils, actor, in_this_process(getattr(async_utils, actor)))
    patch.setattr(grpo, "get_actor_python_env", lambda _: "/usr/bin/python3")
    patch.setattr(grpo.ray, "kill", stop)
    plugged = Plugged(path, METHODS[name], [*OVERRIDES, *overrides], mode=mode)
    return plugged.train(trainer=grpo.async_grpo_train)
