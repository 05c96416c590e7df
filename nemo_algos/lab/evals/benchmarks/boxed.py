"""Problems whose final answer stands in a box: mathematics, with pictures too, and options."""

import ast
import base64
import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_algos.engines.data.prompts import Asked, TrainedPrompt, last_user_message, parse_question
from nemo_algos.engines.data.rows import Row, after_hashes
from nemo_algos.engines.rewards.answers import boxed
from nemo_algos.lab.evals.problem import URLS, Options, Problem, info_of

OWN = TrainedPrompt(
    prompt="{problem}\nPlease reason step by step, and put your final answer within \\boxed{}."
)
SEVERAL = " If there are several answers, put all of them in one box, separated by commas."
UNIT = " Give the answer in {unit}, without the unit."

IDS = ("unique_id", "id", "ID", "idx")
QUESTION = ("problem", "Problem", "question", "Question")
ANSWER = ("answer", "Answer", "final_answer")
SOLUTION = ("solution", "Solution")

NO_NUMBER = re.compile(r"(?i)\s*[-+]?(?:nan|inf)\s*")  # JSON's NaN and 1e400
LEADING_ZEROS = re.compile(r"0[0-9]+\Z")
HAS_UNIT = re.compile(r"\\circ|\d\s*\\(text|mathrm|mbox)\b")


def problems(rows: list[Row], options: Options) -> Iterator[Problem]:
    """One problem per row, its gold as `gold_of` says. ValueError where a field is missing."""
    counts = options.counts
    wording = options.trained or OWN
    for place, row in enumerate(rows):
        answer = gold_of(row, counts, wording)
        unit = row.get("unit")
        asked = _question(row, wording)
        more = ""
        if str(row.get("is_multiple_answer")).lower() == "true":
            counts["several answers"] += 1
            more += SEVERAL
        if unit:
            counts["units outside the gold"] += 1
            more += UNIT.format(unit=unit)
            # "4.2" in "%": only the gold 4.2\% takes a response of 4.2, of 4.2\% and of 0.042
            answer += r"\%" if unit == "%" else ""
        counts["error tolerances not used"] += bool(row.get("error"))
        counts["percent golds"] += "%" in answer
        counts["golds with a unit"] += bool(HAS_UNIT.search(answer))
        info = info_of(row, "level", "subject", "type", "subfield", "answer_type", "unit", "error")
        *before, last = wording.messages(asked)
        prompt = last["content"] + more
        prefix = wording.prefix(asked)
        own = options.id_of(row, place, *IDS)
        yield Problem(own, prompt, answer, info=info, before=before, prefix=prefix)


def _question(row: Row, wording: TrainedPrompt) -> Asked:
    names = (wording.input_key, *QUESTION)
    value = row.need(*names)
    if isinstance(value, list):
        return parse_question(value, row.where)[0]
    context = f"{row.text('context')}\n" if row.get("context") else ""  # OlympiadBench
    return context + row.text(*names)


def gold_of(row: Row, counts: Counter[str], wording: TrainedPrompt = OWN) -> str:
    """The gold answer as LaTeX, each conversion counted.

    A whole float loses its ".0", a list is joined with ", " and loses its "$", a GSM8K answer is
    what follows "####" without commas, whole numbers lose leading zeros; without an answer it is
    the last box of the solution. Raises ValueError for nothing, NaN or an infinite number.
    """
    value = row.get(wording.output_key, *ANSWER)
    chat = row.get(wording.input_key)
    if value is None and isinstance(chat, list):
        value = parse_question(chat, row.where)[1]
    entries = _entries(value)
    if value is None:
        gold = _last_box(row, counts)
    elif isinstance(value, float):
        counts["float golds"] += 1
        gold = str(int(value)) if value.is_integer() else str(value)
    elif entries:
        counts["list golds"] += 1
        gold = ", ".join(str(entry).replace("$", "") for entry in entries)
    else:
        gold = _of_text(str(value), counts)
    if LEADING_ZEROS.match(gold):
        counts["golds with leading zeros"] += 1
        gold = str(int(gold))
    if any(NO_NUMBER.fullmatch(part) for part in gold.split(",")):
        raise ValueError(
            f"{row.where} has the gold answer {gold}, which no response can equal. "
            "Write the number, or remove the row."
        )
    if not gold.strip():
        raise ValueError(f"{row.where} has an empty gold answer")
    return gold.strip()


def _last_box(row: Row, counts: Counter[str]) -> str:
    gold = boxed(str(row.need(*SOLUTION, *ANSWER)))
    if gold is None:
        raise ValueError(f"{row.where} has no answer, and its solution has no \\boxed{{...}}")
    counts["golds from the solution's last box"] += 1
    return gold


def _entries(value: Any) -> list[Any]:
    """The entries of a list, or of a Python list in a string, such as "['2']"; else none."""
    if isinstance(value, str) and re.fullmatch(r"\s*\[\s*['\"].*['\"]\s*\]\s*", value, re.DOTALL):
        try:
            value = ast.literal_eval(value.strip())
        except (SyntaxError, ValueError):
            return []
    return value if isinstance(value, list) else []


def _of_text(text: str, counts: Counter[str]) -> str:
    if "####" in text:
        counts["golds after ####"] += 1
        written = text.rpartition("####")[2].strip()
        text = after_hashes(text)
        counts["golds with thousands commas"] += text != written
    text = text.strip()
    if len(text) > 2 and text[0] == text[-1] == "$" and text.count("$") == 2:
        counts["golds in dollar signs"] += 1
        text = text[1:-1].strip()
    if re.fullmatch(r"-?\d+\.0+", text):
        counts["float golds"] += 1
        text = text.partition(".")[0]
    return text


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
GPQA = "{question}\n\n{options}\n\n"
ACPBENCH = "{context}\n\n{question}\n\n"
LETTER = (
    "Please reason step by step, and put the letter of the right option within \\boxed{}, "
    "as in \\boxed{A}."
)
YES_NO = "Please reason step by step, and put your final answer, yes or no, within \\boxed{}."


def gpqa(rows: list[Row], options: Options) -> Iterator[Problem]:
    """Four options in the order of `order`, the letter of "Correct Answer" as the gold."""
    keys = ("Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3)))
    for row in rows:
        name = row.text("Record ID")
        texts = [row.text(key).strip() for key in keys]
        options.counts["problems with equal options"] += len(set(texts)) < len(texts)
        shown = order(options.seed, name)
        lines = []
        for letter, i in zip(LETTERS, shown, strict=False):
            lines.append(f"{letter}. {texts[i]}")
        question = GPQA.format(question=row.text("Question").strip(), options="\n".join(lines))
        info = info_of(row, "High-level domain", "Subdomain")
        yield Problem(name, question + LETTER, LETTERS[shown.index(0)], info=info)


def order(seed: int, name: str, number: int = 4) -> list[int]:
    """The options' order of one problem: their numbers by the SHA-256 of "seed/name/number"."""
    digests = []
    for i in range(number):
        digests.append(hashlib.sha256(f"{seed}/{name}/{i}".encode()).digest())
    return sorted(range(number), key=digests.__getitem__)


def acpbench_bool(rows: list[Row], options: Options) -> Iterator[Problem]:
    """Context and question; "yes" or "no"."""
    return (_acpbench(row, i, options, ["yes", "no"], YES_NO) for i, row in enumerate(rows))


def acpbench_mcq(rows: list[Row], options: Options) -> Iterator[Problem]:
    """Context and question, which lists the options; the gold is one of choices["label"]."""
    labels = []
    for row in rows:
        labels.append(Row(dict(row.need("choices")), row.where).list("label"))
    return (_acpbench(row, i, options, labels[i], LETTER) for i, row in enumerate(rows))


def _acpbench(row: Row, place: int, options: Options, valid: list[str], ask: str) -> Problem:
    answer = row.text("answer").strip()
    if answer not in valid:
        raise ValueError(f"{row.where}: answer must be one of {', '.join(valid)}, got {answer!r}")
    context = row.text("context").strip()
    question = row.text("question").strip()
    prompt = ACPBENCH.format(context=context, question=question) + ask
    # an id is unique in its group only
    name = f"{row.text('group')}/{options.id_of(row, place, 'id')}"
    return Problem(name, prompt, answer, info=info_of(row, "group"))


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
        if image.startswith(URLS):
            return image
        return _beside(image, row, folder)
    if hasattr(image, "save"):
        png = io.BytesIO()
        image.save(png, "PNG")
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
