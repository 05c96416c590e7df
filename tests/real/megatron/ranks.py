"""One function on several processes, joined by gloo.

Forked, for importing megatron.core takes longer than any case: a rank starts with what its parent
has. The parent must never have run a backward: autograd's threads do not survive a fork.
"""

import io
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import shims
import torch
import torch.distributed as dist

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
CONTEXT = multiprocessing.get_context("fork")


def run(world: int, work: Callable[[], Any], seconds: float = 600.0) -> list[Any]:
    """What work() returns on each rank, tensors and plain values.

    The test fails with the ranks' tracebacks, or after so many seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{Path(folder) / 'store'}"
        pipes = [CONTEXT.Pipe(duplex=False) for _ in range(world)]
        ranks = [
            CONTEXT.Process(target=_rank, args=(r, world, store, work, pipe[1]))
            for r, pipe in enumerate(pipes)
        ]
        for process in ranks:
            process.start()
        try:
            answers = _collect([own for own, _ in pipes], time.monotonic() + seconds)
            for process in ranks:
                process.join(10)  # by itself: it ends what it started
            return answers
        finally:
            for process in ranks:
                process.kill()
                process.join()


def _collect(pipes: list[Connection], end: float) -> list[Any]:
    answers = {}
    for rank, pipe in enumerate(pipes):
        if pipe.poll(max(0.0, end - time.monotonic())):
            answers[rank] = torch.load(io.BytesIO(pipe.recv_bytes()), weights_only=False)
    failures = [f"rank {r}: {a}" for r, a in answers.items() if isinstance(a, str)]
    missing = [f"rank {r}: no answer" for r in range(len(pipes)) if r not in answers]
    if failures or missing:
        pytest.fail("\n".join(failures + missing), pytrace=False)
    return [answers[rank] for rank in range(len(pipes))]


def _rank(rank: int, world: int, store: str, work: Callable[[], Any], pipe: Connection) -> None:
    answer = io.BytesIO()
    try:
        shims.install()
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
        torch.save(work(), answer)
        dist.barrier()  # none leaves while another still needs it
    except BaseException:  # the others see it leave, and fail too
        answer = io.BytesIO()
        torch.save(traceback.format_exc(), answer)
    pipe.send_bytes(answer.getvalue())
