"""The program itself on the stack: examples/run_grpo_math.py with a recipe, on a Ray of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rehearsal import machine
from rehearsal.reaper import reap
from rehearsal.training import Attempt, curves

from nemo_algos.preflight.check.data import scoring

RECIPE = "recipes/cpu/countdown-1n1g-fsdp.yaml"
START = "recipes/cpu/countdown.yaml"  # its model, its problems
ROOT = Path(__file__).parents[3]


@contextmanager
def running(folder: Path, nemo_rl: Path, gpus: int = 1) -> Iterator[dict[str, str]]:
    """Within, there are start model and data in folder/start, and a Ray; gives the variables."""
    env = {**os.environ, **machine.variables(nemo_rl, folder), "HF_HUB_OFFLINE": "1"}
    if not (folder / "start").exists():
        words = ["-m", "nemo_algos", "export", START, "start"]
        with open(folder / "export.log", "wb") as log:
            subprocess.run([sys.executable, *words], cwd=folder, env=env, check=True, stdout=log)
    try:
        with scoring.head(folder, env, gpus) as address:
            yield {**env, **address}
    finally:
        reap(folder)  # what killed actors have left: a manager's server waits for its owner


def train(
    folder: Path,
    env: Mapping[str, str],
    *overrides: str,
    program: Path = ROOT / "examples" / "run_grpo_math.py",
) -> Attempt:
    """The run; its log, TensorBoard's and its checkpoints are below `folder`."""
    words = [str(program), "--config", RECIPE, *overrides]
    return Attempt(folder / "log", env, words, folder)


def curve(folder: Path, name: str) -> dict[int, float]:
    """One of them; nothing where it is not there."""
    return curves(folder).get(name, {})
