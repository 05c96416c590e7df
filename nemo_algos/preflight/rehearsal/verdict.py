"""What a rehearsal found, a line for each thing that it tried."""

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nemo_algos.config import as_written

FILE = "verdicts.jsonl"
Outcome = Literal["passed", "warning", "failed", "unchecked"]


class Verdict(NamedTuple):
    """One finding of a stage.

    message: what was seen; of a failure also why it matters and what to do. key: the config's key
    to change, or "". seconds: what the stage took up to here. details: numbers and samples for the
    report, plain JSON.
    """

    stage: str
    outcome: Outcome
    message: str
    key: str = ""
    seconds: float = 0.0
    details: dict[str, Any] = {}  # noqa: RUF012


def add(folder: Path, verdict: Verdict) -> Verdict:
    """Append a verdict to the folder's file, which several processes write one after the other."""
    with open(folder / FILE, "a") as file:
        file.write(json.dumps(as_written(verdict._asdict())) + "\n")
    return verdict


def read(folder: Path) -> list[Verdict]:
    """The folder's verdicts so far."""
    path = folder / FILE
    lines = path.read_text().splitlines() if path.exists() else []
    return [Verdict(**json.loads(line)) for line in lines]
