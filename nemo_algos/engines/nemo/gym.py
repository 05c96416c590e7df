"""A run whose rollouts NeMo Gym's servers make: what is different before, around and after it.

The steps are those of NeMo-RL's examples/nemo_gym/run_grpo_nemo_gym.py. NeMo-RL's setup starts the
servers, in an actor; its trainers, and all that we plug into them, are those of any run.
"""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from typing import Any

import ray
from nemo_rl.data.utils import setup_response_data
from ray.exceptions import GetTimeoutError, RayError

from nemo_algos.engines.nemo import versions

TASK = "nemo_gym"  # NeMo-RL's rollouts look up the actor by this name
SIGNAL = signal.SIGUSR2  # Ctrl-C's is ignored by what a shell starts in the background
PERIOD = 30.0  # seconds between two questions whether all servers live


def configure(master_config: Any, tokenizer: Any) -> None:
    """Have vLLM serve over HTTP, and leave the end of a response to the servers."""
    from nemo_rl.environments.nemo_gym import setup_nemo_gym_config

    setup_nemo_gym_config(master_config, tokenizer)
    # NeMo-RL's own switch, which Gym would refuse as a server
    master_config.env[TASK].pop("is_trajectory_collection", None)


def data_sets(master_config: Any, tokenizer: Any) -> tuple[Any, Any]:
    """Those of training and validation, of which the latter is one batch, as it is."""
    train, validation = setup_response_data(tokenizer, master_config.data, env_configs=None)
    if validation is not None:
        for key in ("max_val_samples", "val_batch_size"):
            versions.put(master_config.grpo, key, len(validation))
    return train, validation


class _Ended(BaseException):
    """A server has ended; no Exception, which trainers may catch, print and go on after."""


@contextmanager
def watched(actor: Any) -> Iterator[None]:
    """Within, on the main thread, the run ends where a server does, if NeMo-RL's actor can tell.

    Else it would wait: Gym's clients ask again and again where nobody answers. Raises
    BrokenExecutor with what Gym says of the server.
    """
    if not hasattr(actor, "health_check"):
        yield
        return
    faults: list[Exception] = []
    over = threading.Event()
    main = threading.get_ident()

    def watch() -> None:
        while not faults and not over.wait(PERIOD):
            try:
                ray.get(actor.health_check.remote(), timeout=PERIOD)
            except GetTimeoutError:  # the actor is busy
                continue
            except RayError as fault:
                faults.append(fault)
        while not over.is_set():  # what waits, as an event loop, may drop the first
            signal.pthread_kill(main, SIGNAL)
            over.wait(1.0)

    def end(*_: Any) -> None:
        if not over.is_set():
            raise _Ended

    before = signal.signal(SIGNAL, end)
    watcher = threading.Thread(target=watch, name=TASK, daemon=True)
    watcher.start()
    try:
        yield
    except _Ended:
        over.set()
        what = getattr(faults[0], "cause", None) or faults[0]  # Ray's has the traceback before it
        raise BrokenExecutor(f"NeMo Gym makes no more rollouts: {what}") from None
    finally:
        over.set()
        watcher.join()
        signal.signal(SIGNAL, before)
