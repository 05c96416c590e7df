"""Problems with options or a yes or no: GPQA and ACPBench."""

import hashlib
from collections.abc import Iterator

from nemo_algos.engines.data.rows import Row
from nemo_algos.lab.evals.benchmarks.source import Options, info_of
from nemo_algos.lab.evals.problem import Problem

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
        name, texts = row.text("Record ID"), [row.text(key).strip() for key in keys]
        options.counts["problems with equal options"] += len(set(texts)) < len(texts)
        shown = order(options.seed, name)
        lines = [f"{letter}. {texts[i]}" for letter, i in zip(LETTERS, shown, strict=False)]
        question = GPQA.format(question=row.text("Question").strip(), options="\n".join(lines))
        info = info_of(row, "High-level domain", "Subdomain")
        yield Problem(name, question + LETTER, LETTERS[shown.index(0)], info=info)


def order(seed: int, name: str, number: int = 4) -> list[int]:
    """The options' order of one problem: their numbers by the SHA-256 of "seed/name/number"."""
    digests = [hashlib.sha256(f"{seed}/{name}/{i}".encode()).digest() for i in range(number)]
    return sorted(range(number), key=digests.__getitem__)


def acpbench_bool(rows: list[Row], options: Options) -> Iterator[Problem]:
    """Context and question; "yes" or "no"."""
    return (_acpbench(row, i, options, ["yes", "no"], YES_NO) for i, row in enumerate(rows))


def acpbench_mcq(rows: list[Row], options: Options) -> Iterator[Problem]:
    """Context and question, which lists the options; the gold is one of choices["label"]."""
    labels = [Row(dict(row.need("choices")), row.where).list("label") for row in rows]
    return (_acpbench(row, i, options, labels[i], LETTER) for i, row in enumerate(rows))


def _acpbench(row: Row, place: int, options: Options, valid: list[str], ask: str) -> Problem:
    answer = row.text("answer").strip()
    if answer not in valid:
        raise ValueError(f"{row.where}: answer must be one of {', '.join(valid)}, got {answer!r}")
    context, question = row.text("context").strip(), row.text("question").strip()
    prompt = ACPBENCH.format(context=context, question=question) + ask
    # an id is unique in its group only
    name = f"{row.text('group')}/{options.id_of(row, place, 'id')}"
    return Problem(name, prompt, answer, info=info_of(row, "group"))
