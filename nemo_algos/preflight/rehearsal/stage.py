"""One stage of a rehearsal: it adds verdicts to the folder's file, with the time up to each."""

import time
from pathlib import Path
from typing import Any

from nemo_algos.preflight.rehearsal.verdict import Outcome, Verdict, add

NAMED = 5  # rows that a message names


class Stage:
    """The verdicts of one stage, by its name."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.raised = 0  # failures and warnings so far
        self._begun = time.monotonic()

    def passed(self, message: str, key: str = "", **details: Any) -> None:
        """What was tried, and held."""
        self._add("passed", message, key, details)

    def warning(self, message: str, key: str = "", **details: Any) -> None:
        """What is probably not meant."""
        self.raised += 1
        self._add("warning", message, key, details)

    def failed(self, message: str, key: str = "", **details: Any) -> None:
        """What would make the run fail, or learn something else."""
        self.raised += 1
        self._add("failed", message, key, details)

    def unchecked(self, message: str, key: str = "", **details: Any) -> None:
        """What could not be tried here, with the reason."""
        self._add("unchecked", message, key, details)

    def _add(self, outcome: Outcome, message: str, key: str, details: dict[str, Any]) -> None:
        seconds = time.monotonic() - self._begun
        add(self.folder, Verdict(self.name, outcome, message, key, seconds, details))


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
    """On one line, at most so long."""
    line = " ".join(str(text).split())
    return line if len(line) <= characters else line[: characters - 3] + "..."
