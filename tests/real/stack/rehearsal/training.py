"""The training program in the rehearsal's environment: started, watched, killed, started again."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import psutil

from nemo_algos.engines import trace
from nemo_algos.preflight.check.data.scoring import end
from nemo_algos.preflight.check.data.verdict import cut
from rehearsal import machine

LIMIT = 1200  # seconds of an attempt, on a machine that does other things
WORKERS = re.compile(r"(\x1b\[\d+m)?\(\S+.* pid=\d+.*\)")  # the prefix of their lines
EXCEPTION = re.compile(r"[\w.]*(Error|Exception): ")
LAST = 40  # lines of a log that are shown of a failure


class Attempt:
    """A process of a training program, its words after `python`, that adds to a log."""

    def __init__(
        self, log: Path, env: Mapping[str, str], words: Sequence[str], cwd: Path | None = None
    ) -> None:
        self.log, self.folder = log, Path(env[machine.MARK])
        with open(log, "ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def tell(self, words: Sequence[str], variables: Mapping[str, str]) -> None:
        """To one that was started as prestart.py, and waits for it."""
        assert self.process.stdin
        with suppress(BrokenPipeError):  # it has ended: its log says why
            self.process.stdin.write(json.dumps([words, variables]).encode() + b"\n")
            self.process.stdin.flush()

    def ended(self, limit: float = LIMIT) -> int | None:
        """Its exit status; None where it had to be ended after `limit` seconds."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(self.process.pid)

    def reaches(self, path: Path, limit: float = LIMIT) -> bool:
        """Whether the path is there before the process ends."""
        until = time.monotonic() + limit
        while not path.exists():
            if self.process.poll() is not None or time.monotonic() > until:
                return path.exists()
            time.sleep(0.2)
        return True

    def lose_workers(self, name: str = "", limit: float = 120) -> int | None:
        """SIGKILL for each actor of Ray with this in its name; it then ends by itself, or is ended.

        Gives what `ended` gives.
        """
        for process in psutil.process_iter(["cmdline"]):
            title = " ".join(process.info["cmdline"] or ())
            actor = title.startswith("ray::") and name in title and "Agent" not in title
            if actor and belongs_to(process, self.folder):
                process.kill()
        return self.ended(limit)

    def last_lines(self) -> str:
        """The end of its log, without what Ray copies of its workers there, or what is repeated."""
        return "\n".join(self._own_lines()[-LAST:])

    def reason(self) -> str:
        """The last exception of its log, else its last line."""
        lines = [line for line in self._own_lines() if line.strip()]
        return cut(next(filter(EXCEPTION.match, reversed(lines)), lines[-1] if lines else ""))

    def _own_lines(self) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line, _ in groupby(line for line in lines if not WORKERS.match(line))]


def belongs_to(process: psutil.Process, folder: Path) -> bool:
    """Whether it belongs to this rehearsal."""
    try:
        return process.environ().get(machine.MARK) == str(folder)
    except psutil.Error:
        return False


def curves(folder: Path) -> dict[str, dict[int, float]]:
    """The metrics of all attempts by step, from their TensorBoard events; the last one counts."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    values: dict[str, dict[int, float]] = {}
    for file in sorted(folder.glob("logs/**/exp_*/tensorboard/**/events.*"), key=os.path.getmtime):
        events = EventAccumulator(str(file)).Reload()
        for name in events.Tags()["scalars"]:
            steps = {event.step: event.value for event in events.Scalars(name)}
            values[name] = values.get(name, {}) | steps
    return values


def samples(folder: Path, step: int) -> dict[str, list[Any]]:
    """What was logged of a step's responses: content, rewards, advantages, token_ids or prompt."""
    files = _by_time(folder, f"train_data_step{step}.jsonl")
    rows = _rows(files[-1]) if files else []
    return {key: [row[key] for row in rows] for key in rows[0]} if rows else _traced(folder, step)


def _traced(folder: Path, step: int) -> dict[str, list[Any]]:
    """The same of token traces: NeMo-RL's single controller logs no responses."""
    if not (rows := traces(folder, step)):
        return {}
    return {
        "content": [row["prompt"] + "".join(row["tokens"]) for row in rows],
        "rewards": [row["reward"] for row in rows],
        "advantages": [row["advantage"] for row in rows],
        "prompt": [row["prompt"] for row in rows],
    }


def traces(folder: Path, step: int) -> list[dict[str, Any]]:
    """The token traces of a step's last attempt."""
    every = (_rows(file) for file in reversed(_by_time(folder, trace.FILE)))
    found = ([row for row in rows if row["step"] == step] for rows in every)
    return next(filter(None, found), [])


def _by_time(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"logs/**/{name}"), key=os.path.getmtime)


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]
