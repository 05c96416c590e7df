"""Problems with a mathematical answer: MATH, AMC, AIME, Minerva, OlympiadBench, GSM8K, own ones."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from nemo_algos.engines.data.prompts import Asked, TrainedPrompt, parse_question
from nemo_algos.engines.data.rows import Row, after_hashes
from nemo_algos.engines.rewards.answers import boxed
from nemo_algos.lab.evals.benchmarks.source import Options, info_of
from nemo_algos.lab.evals.problem import Problem

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
    counts, wording = options.counts, options.trained or OWN
    for place, row in enumerate(rows):
        answer, unit = gold_of(row, counts, wording), row.get("unit")
        asked, more = _question(row, wording), ""
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
        prompt, prefix = last["content"] + more, wording.prefix(asked)
        own = options.id_of(row, place, *IDS)
        yield Problem(own, prompt, answer, info=info, before=before, prefix=prefix)


def _question(row: Row, wording: TrainedPrompt) -> Asked:
    """The problem's text, or its conversation."""
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
    if value is None:
        gold = _last_box(row, counts)
    elif isinstance(value, float):
        counts["float golds"] += 1
        gold = str(int(value)) if value.is_integer() else str(value)
    elif entries := _entries(value):
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
