"""Rows of files, or of data sets of the hub or of a folder, to train on and to evaluate on."""

import csv
import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_algos.extras import install
from nemo_algos.findings import first_line
from nemo_algos.untrusted import content, from_json, plain

SAVED = ("state.json", "dataset_dict.json")  # what save_to_disk leaves in a folder
SUFFIXES = ".jsonl, .json, .csv, or one of these with .gz, and .parquet"
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
THOUSANDS = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d+)?")


def rows_of(
    name: str, subset: str | None = None, split: str | None = None
) -> tuple[list[dict[str, Any]], str]:
    """The rows of a split, and its fingerprint.

    name: of the hub, or a folder: of save_to_disk's, or of files as the hub has them. split: may be
    left out where there is only one. Raises ValueError where there are none.
    """
    datasets = _package(name)
    datasets.disable_progress_bars()
    try:
        if any((Path(name) / file).exists() for file in SAVED):
            found = datasets.load_from_disk(name)
        else:
            found = datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # the hub's, the network's, or the file format's own classes
        asked = " ".join(filter(None, [name, subset, split]))
        where = "" if Path(name).exists() else ", neither from the hub nor as a file"
        raise ValueError(f"cannot load {asked}{where}: {first_line(error)}") from None
    if isinstance(found, dict):
        wanted = next(iter(found)) if split is None and len(found) == 1 else split
        if wanted not in found:
            known = ", ".join(found)
            raise ValueError(f"{name} has no split {wanted!r}: set split to one of {known}")
        found = found[wanted]
    return [dict(values) for values in found], found._fingerprint


def parquet_rows(file: Path) -> Sequence[dict[str, Any]]:
    """The rows of a parquet file. Raises ValueError."""
    _package(str(file))
    import pyarrow.parquet  # with datasets

    try:
        return pyarrow.parquet.read_table(file).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{file} is not a Parquet file: {first_line(error)}") from None


def _package(name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"{name} needs the package datasets, which is not installed: "
            f"{install('datasets')}, or use a .jsonl, .json or .csv file."
        ) from None
    return datasets


@dataclass(frozen=True)
class Row:
    """One row, and where it came from ("amc23.jsonl, row 3", from 1)."""

    values: dict[str, Any]
    where: str

    def get(self, *names: str) -> Any:
        """The first value under `names` that is neither None nor empty, or None."""
        values = (self.values.get(name) for name in names)
        return next((v for v in values if v is not None and v != "" and v != []), None)

    def need(self, *names: str) -> Any:
        """As get; ValueError with the place and the row's keys where there is none."""
        value = self.get(*names)
        if value is None:
            raise ValueError(
                f"{self.where} has no value for {' or '.join(map(repr, names))}; "
                f"its keys are {', '.join(map(str, self.values))}"
            )
        return value

    def text(self, *names: str) -> str:
        """As need, as text with `\\n` for `\\r\\n`."""
        return str(self.need(*names)).replace("\r\n", "\n")

    def list(self, *names: str) -> list[Any]:
        """As need. ValueError also where it is no list."""
        value = self.need(*names)
        if not isinstance(value, list):
            raise ValueError(f"{self.where}: {names[0]!r} must be a list, got {str(value)[:80]!r}")
        return value


def load(
    data: str, pattern: str | None = None, subset: str | None = None, split: str | None = None
) -> tuple[list[Row], str]:
    """The rows, and "name sha256:..." or a data set's fingerprint.

    data: a file; a folder whose files match `pattern`; without a pattern a folder with a data set,
    or the hub's name of one. Raises ValueError: nothing there, a suffix that is not read, or a
    broken file, with its place.
    """
    path = Path(data)
    of_hub = not path.exists() and not _kind(path) and HUB_NAME.fullmatch(data)
    if pattern is None and (of_hub or path.is_dir()):
        rows, fingerprint = rows_of(data, subset, split)
        name = " ".join(filter(None, [data if of_hub else path.name, subset, split]))
        return number_rows(rows, name), f"{name} fingerprint:{fingerprint}"
    if subset or split:
        raise ValueError(f"{data} is a file. Files have no subset or split: remove those keys.")
    files = sorted(path.rglob(pattern)) if pattern and path.is_dir() else [path]
    if not files:
        raise ValueError(f"{data} does not contain any file {pattern}")
    digest = hashlib.sha256()
    rows = list[Row]()
    for file in files:
        found = content(file)
        digest.update(found)
        rows += _parse(file, found)
    if not rows:
        raise ValueError(f"{data} does not contain any rows")
    return rows, f"{path.name} sha256:{digest.hexdigest()}"


def number_rows(rows: list[dict[str, Any]], name: str) -> list[Row]:
    """Rows of a data set, each with its place. Raises ValueError where there are none."""
    if not rows:
        raise ValueError(f"{name} does not contain any rows")
    return [Row(values, f"{name}, row {i}") for i, values in enumerate(rows, 1)]


def _kind(path: Path) -> str:
    """Its suffix without .gz, where such files are read, else empty."""
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind in (".jsonl", ".json", ".csv", ".parquet"):
        return kind
    return ""


def _parse(file: Path, found: bytes) -> list[Row]:
    kind = _kind(file)
    if not kind:
        raise ValueError(f"{file} is not supported. Convert it to {SUFFIXES}.")
    if kind == ".parquet":
        return number_rows([*parquet_rows(file)], str(file))
    try:
        text = plain(file, found).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot read {file}: {error}") from None
    match kind:
        case ".jsonl":
            lines = []
            for i, line in enumerate(text.split("\n"), 1):
                if line.strip():
                    lines.append((i, line))
            values = [(i, from_json(line, f"{file}, row {i}")) for i, line in lines]
            if len(values) == 1 and isinstance(values[0][1], list):
                raise ValueError(f"{file} is one JSON list. Rename it to .json.")
        case ".json":
            values = from_json(text, str(file))
            if not isinstance(values, list):
                raise ValueError(f"{file} must contain a list of rows")
            values = list(enumerate(values, 1))
        case _:
            values = list(enumerate(_table(text, file), 1))
    for i, value in values:
        if not isinstance(value, dict):
            raise ValueError(f"{file}, row {i} is not a JSON object of key: value pairs")
    return [Row(value, f"{file}, row {i}") for i, value in values]


def _table(text: str, file: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a problem may be long
    rows = csv.DictReader(io.StringIO(text, newline=""))
    try:
        yield from rows
    except csv.Error as error:
        raise ValueError(f"{file}, line {rows.line_num} is not CSV: {error}") from None


def after_hashes(answer: str) -> str:
    """What follows the last `####`, as in GSM8K, a number there without commas; else all of it.

    JSON is left whole: a program's tests may hold such hashes.
    """
    whole = ("", "", answer)
    _, hashes, gold = whole if _is_json(answer) else answer.rpartition("####")
    gold = gold.strip()
    if hashes and THOUSANDS.fullmatch(gold):
        return gold.replace(",", "")
    return gold


def _is_json(text: str) -> bool:
    try:
        return text.lstrip()[:1] in ("{", "[") and bool(from_json(text, ""))
    except ValueError:
        return False
