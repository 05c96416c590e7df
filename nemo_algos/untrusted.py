"""Bytes, names and texts that may come from anyone.

They are read up to a size, they are data and never code, and no terminal obeys them.
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST = 1 << 30  # bytes of a file that is packed
DIGITS = 300  # characters of a parser's complaint


def content(path: Path) -> bytes:
    """The bytes of a regular file. Raises ValueError with the path."""
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot read {path}: it is not a regular file. Name another.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None


def plain(path: Path, found: bytes) -> bytes:
    """`found`, the bytes of `path`, unpacked where that is named .gz. Raises ValueError."""
    try:
        if path.suffix == ".gz":
            return decompress(found, MOST)
        return found
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def from_json(text: str | bytes, where: str) -> Any:
    """The value. Raises ValueError, which begins with `where`, for what is no JSON or too deep."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {str(error)[:DIGITS]}") from None


def refuse_code(value: Any, where: str) -> None:
    """Raises ValueError for a text in `value` that names code as `package.module:NAME`."""
    named = next((text for text in _texts(value) if ":" in text), "")
    if named:
        raise ValueError(
            f"{where} names code, {named[:DIGITS]!r}: a case is data and may only name methods "
            "of this package. Remove it."
        )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, (dict, list)):
        for part in [*value, *(value.values() if isinstance(value, dict) else ())]:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


def decompress(content: bytes, most: int) -> bytes:
    """What gzip has packed. Raises ValueError above `most` bytes, or for what is broken or cut."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            found = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"the gzip data is broken or cut: {error}") from None
    if len(found) > most:
        raise ValueError(f"it unpacks to more than {most >> 20} MiB, so it is not read. Split it.")
    return found


def printable(text: str) -> str:
    """`text` with its lines, and a space for every other character that a terminal would obey."""
    return one_line(text, kept="\n\t")


def one_line(text: str, kept: str = "") -> str:
    """`text` with a space for every character that is neither printable nor kept."""
    characters = list(text)
    for i, character in enumerate(characters):
        if not character.isprintable() and character not in kept:
            characters[i] = " "
    return "".join(characters)
