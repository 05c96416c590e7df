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


def geometry3k(rows: list[Row], options: Options) -> Iterator[Problem]:
    """`images`: paths (relative to the file), URLs, pictures; marks `<image>` leave the prompt."""
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
        return _data_url(image)
    if isinstance(image, str):
        if image.startswith(URLS):
            return image
        if not (path := folder / image).is_file():
            raise ValueError(f"{row.where}: image {path} not found")
        return str(path.resolve())
    if hasattr(image, "save"):
        image.save(png := io.BytesIO(), "PNG")
        return _data_url(png.getvalue())
    raise ValueError(f"{row.where}: an image must be a path, a URL or a picture, got {image!r}")


def _data_url(image: bytes) -> str:
    kind = "jpeg" if image.startswith(b"\xff\xd8") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
