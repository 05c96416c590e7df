"""Problems with pictures: Geometry3K."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_algos.engines.data.prompts import last_user_message
from nemo_algos.engines.data.rows import Row
from nemo_algos.lab.evals.benchmarks.math import ANSWER, IDS, OWN, QUESTION, gold_of
from nemo_algos.lab.evals.benchmarks.source import Options
from nemo_algos.lab.evals.problem import URLS, Problem

MARK = "<image>"
MAGIC = {  # how the file begins -> image/...
    b"\x89PNG\r\n\x1a\n": "png",
    b"\xff\xd8\xff": "jpeg",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
    b"RIFF": "webp",
    b"BM": "bmp",
}


def geometry3k(rows: list[Row], options: Options) -> Iterator[Problem]:
    """`images`: pictures, URLs, paths beside or below the file; marks `<image>` leave the prompt.

    Raises ValueError for a path elsewhere, through a link too, and for what is no picture: rows may
    come from anyone, and their images are sent to the model's server.
    """
    for place, row in enumerate(rows):
        question = row.text(*QUESTION)
        images = tuple(_image(image, row, options.folder) for image in row.list("images"))
        differ = question.count(MARK) != len(images)
        options.counts["other number of <image> marks than images"] += differ
        prompt = last_user_message(OWN.messages(question.replace(MARK, "").strip()))
        row.need(*ANSWER)
        answer = gold_of(row, options.counts)
        yield Problem(options.id_of(row, place, *IDS), prompt, answer, images)


def _image(image: Any, row: Row, folder: Path) -> str:
    """A path or a URL of a row's image: text, the hub's {"bytes", "path"}, or a PIL picture."""
    if isinstance(image, dict):
        image = image.get("bytes") or image.get("path")
    if isinstance(image, bytes):
        return _data_url(image, row.where)
    if isinstance(image, str):
        return image if image.startswith(URLS) else _beside(image, row, folder)
    if hasattr(image, "save"):
        image.save(png := io.BytesIO(), "PNG")
        return _data_url(png.getvalue(), row.where)
    raise ValueError(f"{row.where}: an image must be a path, a URL or a picture, got {image!r}")


def _beside(image: str, row: Row, folder: Path) -> str:
    shown = image[:80].replace("\0", "?")
    try:
        path = (folder / image.replace("\0", "?")).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise ValueError(
                f"{row.where}: image {shown!r} is outside the folder of the data file, and its "
                "content would be sent to the model's server. Put it beside the file."
            )
        if not path.is_file():
            raise ValueError(f"{row.where}: image {folder / shown} not found")
        with path.open("rb") as file:
            _kind(file.read(16), f"{row.where}: image {shown!r}")
    except OSError as error:
        raise ValueError(f"{row.where}: image {shown!r}: {error.strerror}") from None
    return str(path)


def _data_url(image: bytes, where: str) -> str:
    kind = _kind(image, f"{where}: an image")
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def _kind(start: bytes, what: str) -> str:
    kind = next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)
    if kind is None:
        known = ", ".join(sorted({*MAGIC.values()}))
        raise ValueError(
            f"{what} is not a picture of a known kind ({known}). Convert or remove it."
        )
    return kind
