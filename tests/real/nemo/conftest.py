"""Puts one version of NeMo-RL on the path ($NEMO_RL_REF, of checkout.REFS) with stubs.py's modules.

`run.sh` (make test-nemo) runs one after the other. Ray's workers inherit the path by PYTHONPATH.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import checkout
import pytest

REF = os.environ.setdefault("NEMO_RL_REF", "main")
_clone = checkout.home()
if _clone is None:
    raise pytest.UsageError("no NeMo-RL checkout: set NEMO_RL_HOME (make test-nemo skips)")
_path = str(checkout.worktree(_clone, REF))
_tests = Path(__file__).parents[2]
sys.path[:0] = [_path, *map(str, (_tests, _tests / "docs", _tests / "preflight" / "check"))]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_path, os.environ.get("PYTHONPATH")]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "disabled")

import stubs  # noqa: E402

from nemo_algos.algorithms.rollouts import Rollouts  # noqa: E402

stubs.install()
# these suites compute with made-up numbers, of which some are no logarithms of probabilities
Rollouts.largest_logprob = float("inf")


@pytest.fixture(scope="session")
def ref() -> str:
    """v0.7.0 or main, which pull requests are for."""
    return "v0.7.0" if REF == "v0.7.0" else "main"


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ray's calls answered in this process, CUDA's names meaning the CPU."""
    import no_ray
    import ray

    running = ray.is_initialized()
    no_ray.without_ray(monkeypatch)
    stubs.cuda_is_cpu(monkeypatch)
    yield
    assert ray.is_initialized() == running, "what nothing here answers started a Ray by itself"
