"""JSON lines on disk: appended to, and whole after a kill at any moment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects one by one, none where there is no file; a last line that a kill has cut is left
    out. Raises ValueError for another broken line."""
    if not path.exists():
        return
    with open(path) as file:
        for i, line in enumerate(file, 1):
            if line.endswith("\n"):
                yield _object(line, f"{path} line {i}")


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON ({error}): remove the line") from None
    if not isinstance(row, dict):
        raise ValueError(f"{where} is not a JSON object: remove the line")
    return row


def append_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """At the end of the file, which is made where there is none."""
    with open(path, "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def cut_broken_end(path: Path) -> None:
    """Remove half a line that a kill has left."""
    if path.exists():
        with open(path, "rb") as file:
            whole = sum(len(line) for line in file if line.endswith(b"\n"))
        os.truncate(path, whole)


def replace(path: Path, text: str) -> None:
    """The file's whole content, at once."""
    partial = path.with_suffix(".tmp")
    partial.write_text(text)
    partial.replace(path)
