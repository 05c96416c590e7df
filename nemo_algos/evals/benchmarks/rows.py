"""Rows of a benchmark: from a file, a folder of files, or the Hugging Face hub."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUFFIXES = ".jsonl, .json, .csv, or one of these with .gz"


@dataclass(frozen=True)
class Row:
    """One row, and where it came from ("amc23.jsonl, row 3", from 1)."""

    values: dict[str, Any]
    where: str

    def get(self, *names: str) -> Any:
        """The value under the first of `names` that is there and neither None nor empty, or
        None."""
        values = (self.values.get(name) for name in names)
        return next((v for v in values if v is not None and v != "" and v != []), None)

    def need(self, *names: str) -> Any:
        """As get; ValueError with the place and the row's keys where there is none."""
        value = self.get(*names)
        if value is None:
            raise ValueError(
                f"{self.where} has nothing under {' or '.join(map(repr, names))}; "
                f"its keys: {', '.join(map(str, self.values))}"
            )
        return value

    def text(self, *names: str) -> str:
        """As need, as text with `\\n` for `\\r\\n`."""
        return str(self.need(*names)).replace("\r\n", "\n")

    def list(self, *names: str) -> list[Any]:
        """As need; ValueError also where it is no list."""
        value = self.need(*names)
        if not isinstance(value, list):
            raise ValueError(f"{self.where}: {names[0]!r} must be a list, not {str(value)[:80]!r}")
        return value


@dataclass(frozen=True)
class Hub:
    """A data set of the hub; the rows of several configs follow one another."""

    path: str
    split: str
    configs: tuple[str | None, ...] = (None,)

    def __str__(self) -> str:
        configs = [config for config in self.configs if config]
        return f"{self.path} {self.split}" + (f" ({', '.join(configs)})" if configs else "")

    def rows(self) -> tuple[list[Row], str]:
        """The rows of a data set of the hub, and "path split fingerprint:...".

        Raises ValueError: the package `datasets` is not installed, or it cannot load the data set.
        """
        try:
            from datasets import load_dataset  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ValueError(
                f"{self.path} is read by the package datasets, which is not installed: run with "
                "`uv run --with datasets ...`, or give the path of a file as data"
            ) from None
        rows, prints = list[Row](), list[str]()
        for config in self.configs:
            try:
                loaded = load_dataset(self.path, config, split=self.split)
            except Exception as error:  # the hub's, the network's, or the file format's own classes
                raise ValueError(f"cannot load {self} from the hub: {error}") from None
            where = f"{self.path} {config or ''}".strip()
            rows += [Row(dict(values), f"{where}, row {i}") for i, values in enumerate(loaded, 1)]
            prints.append(loaded._fingerprint)
        return rows, f"{self} fingerprint:{'+'.join(prints)}"


def from_files(data: str, pattern: str | None) -> tuple[list[Row], str]:
    """The rows of a file, or of the files of a folder that match `pattern`, by name; and
    "name sha256:...".

    Raises ValueError: nothing there, a suffix that is not read, or a broken file, with its place.
    """
    path = Path(data)
    if path.is_dir():
        if pattern is None:
            raise ValueError(f"{data} is a folder: give one file ({SUFFIXES})")
        files = sorted(path.rglob(pattern))
        if not files:
            raise ValueError(f"{data} holds no file {pattern}")
    else:
        files = [path]
    digest, rows = hashlib.sha256(), list[Row]()
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise ValueError(f"cannot read {file}: {error.strerror}") from None
        digest.update(content)
        rows += _parse(file, content)
    if not rows:
        raise ValueError(f"{data} holds no rows")
    return rows, f"{path.name} sha256:{digest.hexdigest()}"


def _parse(file: Path, content: bytes) -> list[Row]:
    suffixes = file.suffixes
    try:
        if suffixes[-1:] == [".gz"]:
            content, suffixes = gzip.decompress(content), suffixes[:-1]
        text = content.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {file}: {error}") from None
    match suffixes[-1:]:
        case [".jsonl"]:
            lines = [line for line in text.split("\n") if line.strip()]
            values = [_json(line, f"{file}, row {i}") for i, line in enumerate(lines, 1)]
        case [".json"]:
            values = _json(text, str(file))
        case [".csv"]:
            values = list(csv.DictReader(io.StringIO(text, newline="")))
        case _:
            raise ValueError(f"{file}: only {SUFFIXES} is read")
    if not isinstance(values, list):
        raise ValueError(f"{file} must hold a list of rows")
    return [_row(value, f"{file}, row {i}") for i, value in enumerate(values, 1)]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None


def _row(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not an object with the keys of a problem")
    return Row(value, where)
