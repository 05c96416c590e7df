"""What TRL's, verl's and NeMo-RL's trainers log, under our names of metrics."""

import json
import re
from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Any

from nemo_algos.engines.remarks import NEMO_RL
from nemo_algos.jsonl import JsonObject, Step, read_lines, read_object

Series = tuple[list[float], list[float]]  # steps, values
STATE = "trainer_state.json"  # of transformers, in each checkpoint; the last one has all steps
FIRST = 1 << 20  # bytes that are read of a line, to know what a file is
# A metric that is missing here keeps its name, without the `train/` of TensorBoard and NeMo-RL and
# the `actor/` of verl. NeMo-RL's clip shares are of all tokens, the other trainers' of the tokens
# with that sign of the advantage (docs/nemo_rl.md).
NAMES = {
    **{f"train/{name}": ours for name, ours in NEMO_RL.items()},
    "validation/avg_length": "validation/length",
    # TRL: its file, and `eval/` in TensorBoard
    "reward": "reward/mean",
    "entropy": "entropy/updated",
    "kl": "kl/ref",
    "clip_ratio/region_mean": "clip/fraction",
    "completions/mean_length": "length/mean",
    "completions/clipped_ratio": "length/cut_share",
    "step_time": "time/seconds",
    "eval_reward": "validation/accuracy",
    "eval/reward": "validation/accuracy",
    # verl, whose entropy is that of its old log-probs' forward
    "actor/entropy": "entropy/exact",
    "critic/score/mean": "reward/mean",
    "kl_loss": "kl/ref",
    "pg_clipfrac": "clip/fraction",
    "response_length/mean": "length/mean",
    "response_length/clip_ratio": "length/cut_share",
    "timing_s/step": "time/seconds",
}


class State(JsonObject):
    """trainer_state.json, as far as it is read."""

    log_history: list[Step]


class Line(Step):
    """A line of verl's file logger."""

    data: dict[str, Any]


def our_name(metric: str) -> str:
    """The name of the same metric in the embedded engine, or the metric's own."""
    return NAMES.get(metric) or NAMES.get(_plain(metric), _plain(metric))


def _plain(metric: str) -> str:
    return metric.removeprefix("train/").removeprefix("actor/")


def trl_state(folder: Path) -> Path | None:
    """The trainer_state.json of a TRL run: the folder's own, else its last checkpoint's."""
    if (folder / STATE).exists():
        return folder / STATE
    found = []
    for p in folder.glob(f"checkpoint-*/{STATE}"):
        if _number(p.parent) is not None:
            found.append(p)
    return max(found, key=lambda p: _number(p.parent) or 0, default=None)


def _number(checkpoint: Path) -> int | None:
    match = re.fullmatch(r"checkpoint-(\d{1,15})", checkpoint.name)
    return int(match[1]) if match else None


def read_trl(state: Path) -> dict[str, Series]:
    """The metrics by name. Raises ValueError for a file that is not a trainer's state."""
    return _series((row["step"], row) for row in read_object(state, State)["log_history"])


def verl_logs(folder: Path) -> list[Path]:
    """The files of verl's file logger in a folder: each is a run."""
    return sorted(path for path in folder.glob("*.jsonl") if path.is_file() and _is_verl(path))


def _is_verl(path: Path) -> bool:
    with open(path, "rb") as file:
        try:
            row = json.loads(file.readline(FIRST))
        except (ValueError, RecursionError):
            return False
    return isinstance(row, dict) and set(row) == {"step", "data"}


def read_verl(log: Path) -> dict[str, Series]:
    """The metrics by name. Raises ValueError for a line that is none of verl's file logger."""
    return _series((row["step"], row["data"]) for row in read_lines(log, Line))


def _series(rows: Iterable[tuple[int, dict[str, Any]]]) -> dict[str, Series]:
    """By metric. Of a step that is logged twice (a resumed run) the last value counts."""
    values: dict[str, dict[int, float]] = {}
    for step, row in rows:
        # of a metric that both the trainer and our adapter log, the adapter's counts
        ours_last = sorted(_numbers(row), key=lambda pair: our_name(pair[0]) == _plain(pair[0]))
        for name, value in ours_last:
            values.setdefault(our_name(name), {})[step] = value
    return {name: in_order(by_step) for name, by_step in values.items()}


def in_order(by_step: dict[int, float]) -> Series:
    """The steps in their order, and the values at them."""
    steps = sorted(by_step)
    return [float(step) for step in steps], [by_step[step] for step in steps]


def _numbers(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The row's numbers; a callback may also log texts. An integer of any size is a number."""
    for name, value in row.items():
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
            yield name, _float(value)


def _float(value: float) -> float:
    """Infinite for an integer of hundreds of digits, for which Python raises an error."""
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf
