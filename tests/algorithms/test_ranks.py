"""Data-parallel ranks on gloo, whose batches are cut anywhere, against a process with all rows."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from algorithms import rank
from algorithms.rank import EVERY, SOME, cases, compared, errors, together
from batches import make

from nemo_algos import build, rank_signals
from nemo_algos.algorithms import ranks

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def on_ranks(size: int, wrapper: str, blocks: list[dict]) -> list[float]:
    """This process is rank 0, the others are started."""
    port = str(free_port())
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    given = [str(size), port, wrapper, json.dumps(blocks)]
    others = []
    for number in range(1, size):
        command = [sys.executable, str(HERE / "rank.py"), str(number), *given]
        others.append(subprocess.Popen(command, env=environment))
    try:
        found = errors(0, size, int(port), wrapper, blocks)
        assert [other.wait() for other in others] == [0] * (size - 1)
    finally:
        for other in others:
            other.kill()
    return found


class Threads:
    """torch.distributed among the threads of this process: what our code asks of it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.values: list = [None] * size
        self.met = threading.Barrier(size, timeout=60)
        self.own = threading.local()

    def get_world_size(self, group: object = None) -> int:
        return self.size

    def get_rank(self, group: object = None) -> int:
        return self.own.rank

    def all_gather_object(self, found: list, value: object, group: object) -> None:
        self.values[self.own.rank] = value
        self.met.wait()
        found[:] = self.values
        self.met.wait()

    def call(self, function: Callable[[], list]) -> list[list]:
        """What each rank gets."""

        def on(number: int) -> list:
            self.own.rank = number
            return function()

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(on, range(self.size)))


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_are_one_process(monkeypatch, size):
    """Threads in place of processes; gradients are averaged, as DDP and FSDP do."""
    threads = Threads(size)
    monkeypatch.setattr(ranks, "dist", threads)
    monkeypatch.setattr(rank, "dist", threads)
    errors = list[float]()
    for world, algorithm in cases(size, SOME):
        every = threads.call(lambda w=world, a=algorithm: list(together(w, a, "none")))
        found = list[tuple[torch.Tensor, dict[str, float]]]()
        for update in zip(*every, strict=True):
            gradient = torch.stack([gradient for gradient, _ in update]).mean(0)
            assert all(metrics == update[0][1] for _, metrics in update)
            found.append((gradient, update[0][1]))
        errors += compared(world, algorithm, found)
    assert len(errors) == 21 and max(errors) < 1e-12


@pytest.mark.long
@pytest.mark.parametrize(("size", "wrapper"), [(2, "ddp"), (3, "ddp"), (2, "fsdp2"), (3, "fsdp2")])
def test_every_method_on_ranks(size, wrapper):
    found = on_ranks(size, wrapper, EVERY)
    assert len(found) == 3 * (len(EVERY) + 4) and max(found) < 1e-12


def test_ranks_that_cannot_cut_their_rows_evenly_are_told(monkeypatch):
    def gather(found, value, group):
        found[:] = [value, value]

    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    rollouts = make().rollouts[torch.arange(3)]
    with pytest.raises(ValueError, match=r"\[3, 3\].* 2 optimizer batches"):
        rank_signals(build("grpo"), rollouts, updates=2)
