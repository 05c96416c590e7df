"""Incidents of a run: lines of `nemo-algos` in a copy of the row's folder. And of a metric."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from click.testing import CliRunner
from incident import Command, Evals
from measured import Measured, missing
from typer.main import get_command

from nemo_algos.algorithms.core.pass_at_k import best_at_k, pass_at_k
from nemo_algos.cli import app
from nemo_algos.engines.local import tiny_policy
from nemo_algos.lab.evals.metrics import maj_at_k

sys.path.append(str(Path(__file__).parents[2] / "tests"))

import releases  # pyright: ignore[reportMissingImports]

COMMAND = get_command(app)


@contextlib.contextmanager
def _elsewhere(source: Path) -> Iterator[Path]:
    """A copy of a folder, with what reads as a checkout of NeMo-RL; the tiny start is made fast."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        shutil.copytree(source, folder)
        kept = {"NEMO_ALGOS_CACHE": f"{name}/cache"}
        fast = mock.patch.object(tiny_policy, "WARM_STEPS", 2)
        with fast, mock.patch.dict(os.environ, kept), contextlib.chdir(folder):
            yield folder


def measure_command(row: Command) -> Measured:
    """The last line's status and words."""
    with _elsewhere(row.folder) as folder:
        if row.who == "slurm":
            releases.write(folder / "nemo-rl")
            (folder / "nemo-rl" / "ray.sub").write_text("exit 0\n")
        done: Any = SimpleNamespace(exit_code=0, output="")
        for line in row.commands:
            if "{model}" in line:
                from mismatches import world

                line = line.replace("{model}", str(world().folder / "model"))
            words = [word.replace("{here}", str(folder)) for word in line.split()]
            done = CliRunner().invoke(COMMAND, words)
        text = done.output
        if row.expected.file:
            text = "".join(file.read_text() for file in folder.glob(row.expected.file))
    absent = missing(row.expected.says, text)
    right = done.exit_code == row.expected.status
    said = f"status {done.exit_code}"
    said += f", not said: {', '.join(absent)}" if absent else f": {_shown(row, text)}"
    if right and not absent:
        return Measured("whole", said)
    few = len(absent) < len(row.expected.says)
    return Measured("part" if few else "missed", f"{said} | {text.strip()[-200:]!r}")


def _shown(row: Command, text: str) -> str:
    """The line with the first of the words."""
    first = row.expected.says[0].lower() if row.expected.says else ""
    return next((line.strip() for line in text.splitlines() if first in line.lower()), "")[:140]


def measure_evals(row: Evals) -> Measured:
    """The metric's mean over the problems, or its refusal."""
    rewards = np.array(row.rewards)
    right = (rewards > 0).sum(1)
    try:
        if row.metric == "pass@k":
            values = pass_at_k(right, rewards.shape[1], [row.k])
        elif row.metric == "best@k":
            values = best_at_k(rewards, [row.k])
        else:
            pairs = zip(row.answers, rewards, strict=True)
            values = np.array([maj_at_k(answers, each, [row.k]) for answers, each in pairs])
    except ValueError as refusal:
        refused = row.expected.refuses and not missing(row.expected.refuses, str(refusal))
        return Measured("whole" if refused else "missed", f"refused: {refusal}"[:140])
    value = float(np.mean(values))
    wanted = row.expected.value
    same = wanted is not None and abs(value - wanted) < 1e-6
    return Measured("whole" if same else "missed", f"{row.metric} {value:.6g}")
