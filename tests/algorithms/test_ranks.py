"""Data-parallel ranks on gloo, whose batches are cut anywhere, against a process with all rows."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from algorithms.rank import EVERY, SOME, errors
from batches import make

from nemo_algos import build, rank_signals

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
    for rank in range(1, size):
        command = [sys.executable, str(HERE / "rank.py"), str(rank), *given]
        others.append(subprocess.Popen(command, env=environment))
    try:
        found = errors(0, size, int(port), wrapper, blocks)
        assert [other.wait() for other in others] == [0] * (size - 1)
    finally:
        for other in others:
            other.kill()
    return found


def test_two_ranks_are_one_process():
    found = on_ranks(2, "ddp", SOME)
    assert len(found) == 21 and max(found) < 1e-12


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
