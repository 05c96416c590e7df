"""What was tried of a run's data, one verdict a line; a stage adds them to a folder's file."""

import json
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nemo_algos.secrets import as_written

FILE = "verdicts.jsonl"
MARKS = {"passed": "ok", "warning": "warn", "failed": "FAIL", "unchecked": "open"}
NAMED = 5  # rows that a message names
MANY = 0.05  # share of rows above which a warning is a failure
LAST = 12  # lines of a log that the terminal shows
Outcome = Literal["passed", "warning", "failed", "unchecked"]


class Verdict(NamedTuple):
    """One finding of a stage.

    message: what was seen; of a failure also why it matters and what to do. key: the config's key
    to change, or "". seconds: what the stage took up to here. details: numbers and samples for
    scripts, plain JSON.
    """

    stage: str
    outcome: Outcome
    message: str
    key: str = ""
    seconds: float = 0.0
    details: dict[str, Any] = {}  # noqa: RUF012

    def line(self) -> str:
        """`stage  mark  seconds  message`, and the last lines of the log of what failed."""
        took = f"{self.seconds:5.0f} s" if self.seconds >= 1 else " " * 7
        key = f" [{self.key}]" if self.key and self.key not in self.message else ""
        first = f"{self.stage:10} {MARKS[self.outcome]:4} {took}  {self.message}{key}"
        log = str(self.details.get("lines", "")).splitlines()[-LAST:]
        return "\n".join([first, *(f"           | {line}" for line in log)])


def add(folder: Path, verdict: Verdict) -> Verdict:
    """Append a verdict to the folder's file, which several processes write one after the other."""
    with open(folder / FILE, "a") as file:
        file.write(json.dumps(as_written(verdict._asdict())) + "\n")
    return verdict


def read(folder: Path) -> list[Verdict]:
    path = folder / FILE
    lines = path.read_text().splitlines() if path.exists() else []
    return [Verdict(**json.loads(line)) for line in lines]


class Stage:
    """Adds the verdicts of one stage, by its name, with the time up to each."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.raised = 0  # failures and warnings so far
        self._begun = time.monotonic()

    def passed(self, message: str, key: str = "", **details: Any) -> None:
        """Say what was tried, and held."""
        self._add("passed", message, key, details)

    def warning(self, message: str, key: str = "", **details: Any) -> None:
        """Say what is probably not meant."""
        self.raised += 1
        self._add("warning", message, key, details)

    def failed(self, message: str, key: str = "", **details: Any) -> None:
        """Say what would make the run fail, or learn something else."""
        self.raised += 1
        self._add("failed", message, key, details)

    def wrong(self, message: str, key: str, of: tuple[int, int], **details: Any) -> None:
        """Say what is wrong in a part of the rows: of many it is a failure, else a warning."""
        part, whole = of
        say = self.failed if part > MANY * whole else self.warning
        say(message, key, **details)

    def unchecked(self, message: str, key: str = "", **details: Any) -> None:
        """Say what could not be tried here, with the reason."""
        self._add("unchecked", message, key, details)

    def _add(self, outcome: Outcome, message: str, key: str, details: dict[str, Any]) -> None:
        seconds = time.monotonic() - self._begun
        found = Verdict(self.name, outcome, message, key=key, seconds=seconds, details=details)
        add(self.folder, found)


def list_rows(numbers: list[int]) -> str:
    """`row 7,312`, `rows 1, 2, 3, 4, 5 and 12 more`: rows by number, the first is 1."""
    shown = ", ".join(f"{n:,}" for n in numbers[:NAMED])
    more = f" and {len(numbers) - NAMED:,} more" if len(numbers) > NAMED else ""
    return f"row{'s' if len(numbers) > 1 else ''} {shown}{more}"


def share(part: int, whole: int) -> str:
    """`12 of 300 (4 %)`."""
    percent = 100 * part / whole if whole else 0
    return f"{part:,} of {whole:,} ({percent:.3g} %)"


def cut(text: object, characters: int = 200) -> str:
    """The text on one line, at most so long."""
    line = " ".join(str(text).split())
    if len(line) <= characters:
        return line
    return line[: characters - 3] + "..."
