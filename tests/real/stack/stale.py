"""The program with a sampler that keeps its first weights: what a later refit sends is nothing."""

from collections.abc import Callable
from typing import Any

from nemo_rl.models.generation.vllm import VllmGeneration
from nemo_rl.models.policy.lm_policy import Policy

from nemo_algos.cli import main


def first(call: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """The first call's futures, then none."""
    calls = iter([call])
    return lambda *args, **kwargs: next(calls, lambda *_, **__: [])(*args, **kwargs)


for owner, name in (
    (Policy, "stream_weights_via_ipc_zmq"),
    (VllmGeneration, "update_weights_via_ipc_zmq"),
):
    setattr(owner, name, first(getattr(owner, name)))

if __name__ == "__main__":
    main("train")
