"""JSON on disk: objects, and lines that are appended to and whole after a kill at any moment.

A file may come from anyone: it is checked against a shape, and the error names file, line and key.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nemo_algos.findings import problems_of
from nemo_algos.untrusted import content, from_json

DEEPEST = 100  # levels of an object; what walks it would exhaust the stack at some 500
LONGEST = 300  # characters of a complaint


class JsonObject(BaseModel):
    """What an object must hold; it may hold more."""

    model_config = ConfigDict(strict=True)


class Step(JsonObject):
    """A line of a record."""

    step: int = Field(ge=-(2**53), le=2**53)


class Metrics(JsonObject):
    """Numbers by name, NaN and infinities too."""

    __pydantic_extra__: dict[str, float | None]  # pyright: ignore[reportIncompatibleVariableOverride]
    model_config = JsonObject.model_config | {"extra": "allow"}


def read_lines(path: Path, shape: type[BaseModel] = JsonObject) -> Iterator[dict[str, Any]]:
    """The objects one by one, none where there is no file, without a last line that a kill has cut.

    Raises ValueError for another broken line, or one that is not of the shape.
    """
    if not path.exists():
        return
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file. Remove it.")
    with open(path, "rb") as file:
        for i, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield _object(line, shape, f"{path} line {i}", "remove the line")


def read_object(path: Path, shape: type[BaseModel] = JsonObject) -> dict[str, Any]:
    """The object in a file. Raises ValueError where it is none, or not of the shape; OSError."""
    value = _object(content(path), shape, str(path), "name another run")
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        below = []
        for value_above in level:
            members = value_above.values() if isinstance(value_above, dict) else value_above
            below += [member for member in members if isinstance(member, (dict, list))]
        level = below
    if level:
        raise ValueError(f"{path} is nested more than {DEEPEST} levels deep. Name another run.")
    return value


def _object(text: bytes, shape: type[BaseModel], where: str, cure: str) -> dict[str, Any]:
    try:
        row = from_json(text, where)
    except ValueError as error:
        raise ValueError(f"{error}. {cure.capitalize()}.") from None
    if not isinstance(row, dict):
        raise ValueError(f"{where} is not a JSON object. {cure.capitalize()}.")
    try:
        shape.model_validate(row)
    except ValidationError as error:
        wrong = str(problems_of(error, shape)[0]).partition(". Set it")[0][:LONGEST]
        raise ValueError(f"{where}: {wrong}. Correct it, or {cure}.") from None
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
    """The file's whole content, at once. Raises OSError with the path, a full disk's too."""
    partial = path.with_suffix(".tmp")
    try:
        partial.write_text(text)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
    partial.replace(path)


def lock_folder(folder: Path, doing: str) -> IO[str]:
    """The folder's lock, until it is closed or the process ends, however that is.

    Raises ValueError where another process has it.
    """
    lock = open(folder / "lock", "w")  # noqa: SIM115 - as long as it is held
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ValueError(
            f"another process is {doing} {folder}. Wait for it, or set another folder."
        ) from None
    return lock


def refuse_links_out(folder: Path, pattern: str = "*") -> None:
    """Raises ValueError for a link out of the folder, and for what is neither file nor folder.

    A link would read or overwrite another file, a pipe would be waited for.
    """
    root = folder.resolve()
    for path in folder.rglob(pattern):
        try:
            target = path.resolve()
        except (OSError, RuntimeError):  # links in a circle
            target = path
        if not target.is_relative_to(root) and target != path:
            raise ValueError(f"{path} links out of the folder, to {target}. Copy the file here.")
        if not (target.is_file() or target.is_dir()):
            raise ValueError(f"{path} is neither a file nor a folder. Remove it.")
