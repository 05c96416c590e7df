"""The program with a sampler that keeps its first weights: what a later refit sends is nothing."""

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from nemo_rl.models.generation.vllm import VllmGeneration
from nemo_rl.models.policy.lm_policy import Policy

from nemo_algos.cli import main


def first(call: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """The futures of each object's first call, then none; the self-test has a policy of its own."""
    seen = WeakSet[Any]()

    def once(owner: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if owner in seen:
            return []
        seen.add(owner)
        return call(owner, *args, **kwargs)

    return once


for owner, name in (
    (Policy, "stream_weights_via_ipc_zmq"),
    (VllmGeneration, "update_weights_via_ipc_zmq"),
):
    setattr(owner, name, first(getattr(owner, name)))

if __name__ == "__main__":
    main("train")
