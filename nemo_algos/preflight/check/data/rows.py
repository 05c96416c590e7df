"""Every row as NeMo-RL's processor hands it to training: its prompt, its length, what is wrong.

Lengths are judged by the run's limits.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nemo_algos.findings import at
from nemo_algos.preflight.check.data.verdict import Stage, cut, list_rows, share

MOST = 100_000  # rows of a data set that are read here
PICTURED = 256  # of one with images, sounds or films
ROLES = ["user", "assistant"]  # of the first messages, which math_hf_data_processor takes unasked
BINS = 20
SOME = 0.01  # share of rows whose responses are cut short, above which it is a warning
LIMIT = "data.max_input_seq_length"
TOTAL = "policy.max_total_sequence_length"
NEW = "policy.generation.max_new_tokens"
ENGINE = "policy.generation.vllm_cfg.max_model_len"


class Row(NamedTuple):
    """A row of a data set.

    number: in its file, from 1; length: of its prompt in tokens, before any cut; masked: NeMo-RL
    drops it from the loss; tokens: of the prompt, [] of a masked one; fault: why it cannot be
    trained on, or "".
    """

    number: int
    task: str
    problem: str = ""
    answer: Any = None
    length: int = 0
    masked: bool = False
    tokens: list[int] = []  # noqa: RUF012
    fault: str = ""


def read(parts: list[Any], numbers: list[int], most: int = MOST) -> Iterator[Row]:
    """The first rows of the processed data sets, in order."""
    following = iter(numbers[:most])
    for part in parts:
        # the number last: zip takes none of it where the part has ended
        for index, number in zip(range(len(part)), following, strict=False):
            yield _row(part, index, number)


def _row(part: Any, index: int, number: int) -> Row:
    entry = {}
    task = ""
    try:
        entry = part.dataset[index]
        task = str(entry.get("task_name", ""))
        datum = part[index]
    except Exception as error:  # whatever a data set or a processor raises
        return Row(number, task, fault=_unlike(entry) or cut(f"{type(error).__name__}: {error}"))
    problem = _problem(entry)
    info = datum.get("extra_env_info") or {}
    answer = info.get("ground_truth")
    if answer == "None" and entry.get("expected_answer", "") is None:
        answer = None  # math_data_processor makes a text of anything
    masked = not datum["loss_multiplier"]
    tokens = list[int]()
    for message in [] if masked else datum["message_log"]:
        if "token_ids" in message:
            tokens += message["token_ids"].tolist()
    fault = _unlike(entry)
    if not fault and "ground_truth" in info:  # which NeMo Gym's rows have not
        fault = _fault(problem, answer)
    return Row(number, task, str(problem), answer, int(datum["length"]), masked, tokens, fault)


def _problem(entry: Mapping[str, Any]) -> Any:
    keys = ("problem", "question", "context", "prompt")
    found = next((entry[key] for key in keys if key in entry), "")
    if entry.get("messages"):
        found = entry["messages"][0].get("content")
    if isinstance(found, list):  # of words, images and sounds
        return " ".join(str(part.get("text") or part.get("content") or "") for part in found)
    return found


def _unlike(entry: Mapping[str, Any]) -> str:
    """What is wrong with the roles of its messages."""
    messages = entry.get("messages")
    roles = [m.get("role") for m in messages] if isinstance(messages, list) else ROLES
    if roles[:2] == ROLES:
        return ""
    return (
        f"its messages are {', '.join(map(str, roles)) or 'none'}: the first is read as the "
        "problem and the second as the answer, whatever their roles"
    )


def _fault(problem: Any, answer: Any) -> str:
    for name, value in (("problem", problem), ("answer", answer)):
        if value is None:
            return f"its {name} is missing (null)"
        if not isinstance(value, str):
            return f"its {name} is {cut(value, 40)}, a {type(value).__name__}, not a text"
        if not value.strip():
            return f"its {name} is empty"
    return ""


def squeeze(text: str) -> str:
    """Without white space."""
    return "".join(text.split())


def faults_in_file(section: Mapping[str, Any], most: int = 5) -> list[str]:
    """Lines of a .jsonl that no reader can take as rows of texts, with the reason."""
    path = Path(str(section.get("data_path") or "."))
    found = []
    if path.suffix != ".jsonl" or not path.is_file():
        return []
    keys = (section.get("input_key") or "input", section.get("output_key") or "output")
    with open(path, errors="replace") as file:
        for number, line in enumerate(file, 1):
            fault = _line_fault(line, keys) if line.strip() else ""
            if fault:
                found.append(f"row {number:,} {fault}")
            if len(found) == most:
                break
    return found


def _line_fault(line: str, keys: tuple[Any, Any]) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        return f"is no JSON: {error}"
    if not isinstance(row, dict):
        return f"is a {type(row).__name__}, not a row of keys"
    if "messages" in row:
        return ""
    for key in keys:
        if key not in row:
            return f"has no key {key!r}"
        if not isinstance(row[key], str):
            return f"has {cut(row[key], 40)} under {key!r}, a {type(row[key]).__name__}, not a text"
    return ""


def length_summary(lengths: Sequence[int]) -> dict[str, Any]:
    """Median, 99th percentile, largest, and a histogram: pairs of a length and the rows from it."""
    ordered = sorted(lengths)
    last = len(ordered) - 1
    width = ordered[-1] // BINS + 1
    counts = Counter(length // width for length in ordered)
    return {
        "p50": ordered[last // 2],
        "p99": ordered[math.ceil(0.99 * last)],
        "max": ordered[-1],
        "histogram": [[i * width, counts[i]] for i in range(ordered[-1] // width + 1)],
    }


def judge_lengths(
    stage: Stage, rows: Sequence[Row], config: Mapping[str, Any], name: str, real: bool
) -> None:
    """What NeMo-RL masks, what no processor cuts, what leaves too little for a response.

    real: neither the rows nor the tokenizer stand in for others.
    """
    plain = dict(config)
    found = length_summary([row.length for row in rows])
    if not real:
        stage.unchecked(
            f"Lengths of {name} were not judged: the rows or the tokenizer stand in for the run's "
            "own.",
            LIMIT,
            **found,
        )
        return
    whole = int(at(plain, ENGINE) or at(plain, TOTAL) or 0)
    masked = []
    for row in rows:
        if row.masked:
            masked.append(row.number)
    if masked:
        stage.wrong(
            f"`{LIMIT}` is {at(plain, LIMIT)}: {share(len(masked), len(rows))} prompts of {name} "
            f"reach it ({list_rows(masked)}). NeMo-RL cuts such a prompt to a few tokens, samples "
            "responses to what is left, and drops them from the loss. Raise the limit, or remove "
            "these rows.",
            LIMIT,
            of=(len(masked), len(rows)),
        )
    if whole:
        long = []
        for row in rows:
            if not row.masked and row.length >= whole:
                long.append(row.number)
        if long:
            stage.failed(
                f"`{TOTAL}` is {whole}: {share(len(long), len(rows))} prompts of {name} leave no "
                f"token for a response ({list_rows(long)}), and nothing masks them. Set `{LIMIT}` "
                f"below `{TOTAL}`, or remove these rows.",
                TOTAL,
            )
        new = int(at(plain, NEW) or 0)
        # half of the length, where max_new_tokens is as much as all of it
        enough = new if new < whole else whole // 2
        short = []
        for row in rows:
            if not row.masked and whole - enough < row.length < whole:
                short.append(row)
        if len(short) > SOME * len(rows):
            room = whole - max(row.length for row in short)
            stage.warning(
                f"`{NEW}` is {new:,} and `{TOTAL}` is {whole:,}: {share(len(short), len(rows))} "
                f"prompts of {name} leave less than {enough:,} tokens for a response, the longest "
                f"{room:,}. Raise `{TOTAL}`, or lower `{LIMIT}` so that such prompts are masked.",
                TOTAL,
            )
    stage.passed(
        f"Prompts of {name} have {found['p50']:,} tokens (median), {found['p99']:,} (99th "
        f"percentile) and {found['max']:,} (longest).",
        **found,
    )
