"""Incidents of data: what `check --data` says of rows, a reward function, a chat template."""

from __future__ import annotations

import json
import runpy
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from incident import Data
from measured import Measured, missing

from nemo_algos.preflight.check.data import (
    dataset_checks,
    rewards,
    scoring,
    stand_in_tokenizer,
    tokenizer_checks,
    verdict,
)
from nemo_algos.preflight.check.data.rows import Row
from nemo_algos.preflight.check.data.verdict import Stage

ROWS = 61  # of sums, where a row has no rows.jsonl


class Here(scoring.Judge):
    """A reward function in this process."""

    def __init__(self, reward: Any) -> None:
        self.section: dict[str, Any] = {}
        self.reward = reward

    def started(self) -> None:
        """It is."""

    def close(self) -> None:
        """Nothing is open."""

    def rewards(self, responses: Any, answers: Any) -> list[float]:
        """Of each response to the row with that answer."""
        return [float(self.reward(r, a)) for r, a in zip(responses, answers, strict=True)]

    def timed(self, response: str, answer: str) -> tuple[float, float]:
        """With the seconds, which no incident is about."""
        return self.rewards([response], [answer])[0], 0.01

    def reason(self, response: str, answer: str) -> str:
        """Why a response earned nothing."""
        return "no reason is given"


def rows_of(file: Path) -> list[Row]:
    """JSON lines with `problem` and `answer`; sums, where there is no file."""
    if not file.exists():
        numbers = [37 * n % ROWS + 12 for n in range(ROWS)]
        return [Row(n, "rows", f"{n} + {n % 7}?", str(n + n % 7)) for n in numbers]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [Row(n, "rows", line["problem"], line["answer"]) for n, line in enumerate(lines, 1)]


def measure_data(row: Data) -> Measured:
    """A verdict of that stage and outcome, with its words."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if row.template:
            _tokenizer(folder, *row.template)
        else:
            _rows(row, folder)
        found = verdict.read(folder)
    wanted = row.expected
    raised = [v for v in found if v.outcome in ("failed", "warning")]
    of_stage = [v for v in raised if v.stage == wanted.stage]
    for v in of_stage:
        enough = v.outcome in (wanted.outcome, "failed")
        if enough and not missing(wanted.says, v.message):
            return Measured("whole", f"{v.outcome}: {v.message}"[:160])
    if of_stage:
        return Measured("part", f"{of_stage[0].outcome}: {of_stage[0].message}"[:160])
    others = [v for v in found if v.stage == wanted.stage]
    return Measured("missed", "; ".join(f"{v.outcome}: {v.message}" for v in others)[:160])


def _rows(row: Data, folder: Path) -> None:
    train = rows_of(row.folder / "rows.jsonl")
    held_out = row.folder / "validation.jsonl"
    others = rows_of(held_out) if held_out.exists() else []
    dataset_checks.judge_together(Stage(folder, "data"), train, others)
    program = row.folder / "reward.py"
    if program.exists():
        judge = Here(runpy.run_path(str(program))["reward"])
        shown = [row.prompt.format(one.problem) for one in train[: rewards.FEW]]
        stage = Stage(folder, "rewards")
        rewards.judge(stage, "rows", judge, train, shown, False, row.stops)


def _tokenizer(folder: Path, find: str, put: str) -> None:
    """A sound tokenizer's template with one part changed, beside the sound one as the model's."""
    sound, changed = folder / "sound", folder / "given"
    made = stand_in_tokenizer.byte_tokenizer()
    made.save_pretrained(sound)
    if find not in made.chat_template:
        raise ValueError(f"the template has no {find!r}: {made.chat_template}")
    made.chat_template = made.chat_template.replace(find, put)
    made.save_pretrained(changed)
    policy = {"model_name": str(sound), "tokenizer": {"name": str(changed)}, "generation": {}}
    config = {"policy": policy, "data": {"train": {}}}
    with mock.patch.object(tokenizer_checks, "load", lambda *_: made):
        tokenizer_checks.judge(Stage(folder, "tokenizer"), config, "given")
