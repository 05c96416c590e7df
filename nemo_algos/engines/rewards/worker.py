"""The child half of `VerifierPool`, run as a module: `worker module:function memory_mb seconds`.

One JSON line `{"response": ..., "answer": ..., ...}` in on stdin, one JSON line `[reward, status,
detail]` out on stdout, until stdin ends. The first line out is a JSON string: empty when the
verifier is loaded, else why it could not be.
"""

import inspect
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, BinaryIO

from nemo_algos.engines.rewards.function import (
    DETAIL_CHARS,
    RewardFunction,
    describe,
    number,
    path_of,
)
from nemo_algos.engines.rewards.pool import PATIENCE

# Prepared beforehand, because an exhausted process may have no memory left to build it.
OUT_OF_MEMORY = b'[0.0, "memory", ""]\n'


def main() -> None:
    """Serve requests until stdin ends; the arguments are those of the module's command line."""
    name = sys.argv[1]
    memory_mb = int(sys.argv[2])
    seconds = float(sys.argv[3])
    requests, replies = _claim_pipes()
    try:
        module, _, function = path_of(name).partition(":")
        verify = RewardFunction(getattr(import_module(module), function))
    except Exception as error:
        os.write(replies, _line(describe(error)))
        return
    _limit(memory_mb)
    os.write(replies, _line(""))
    for request in requests:
        _end_after(seconds)
        reply = _judge(verify, json.loads(request))
        _end_after(0)  # never
        os.write(replies, reply)


def _claim_pipes() -> tuple[BinaryIO, int]:
    # What a verifier prints, or reads from stdin, must not reach the protocol.
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    return requests, replies


def _end_after(seconds: float) -> None:
    # By the kernel, whatever code runs, and where the pool has died, too.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * PATIENCE)


def _limit(memory_mb: int) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "darwin":  # which refuses every such limit with EINVAL
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))


def _judge(verify: Callable[[Mapping[str, Any]], Any], given: Mapping[str, Any]) -> bytes:
    try:
        return _line([number(_await(verify(given))), "ok", ""])
    except MemoryError:
        return OUT_OF_MEMORY
    except TimeoutError as error:  # of a verifier that has a clock of its own
        return _line([0.0, "timeout", str(error)[:DETAIL_CHARS]])
    except BaseException as error:
        return _line([0.0, "error", describe(error)])


def _await(value: Any) -> Any:
    if not inspect.iscoroutine(value):
        return value
    import asyncio  # of few verifiers

    return asyncio.run(value)


def _line(value: object) -> bytes:
    # Below PIPE_BUF (4096 bytes) thanks to DETAIL_CHARS, so the pool never sees half a line.
    return json.dumps(value).encode() + b"\n"


if __name__ == "__main__":
    main()
