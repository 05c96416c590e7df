"""Responses whose reward is known: the gold answer as a prompt asks for it, and wrong ones."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nemo_algos.engines.rewards.answers import boxed

PLACE = "{answer}"
BOXED = "\\boxed{}"
LINE = "Answer:"
THOUGHT = "Let me work it out step by step."
# how an answer is written, in the order in which they are tried where a prompt names none
FORMS = {
    BOXED: f"{THOUGHT}\nThe answer is $\\boxed{{{PLACE}}}$.",
    LINE: f"{THOUGHT}\nAnswer: {PLACE}",
    "<answer>": f"<think>\n{THOUGHT}\n</think>\n<answer>{PLACE}</answer>",
    "####": f"{THOUGHT}\n#### {PLACE}",
    "a code block": f"{THOUGHT}\n```\n{PLACE}\n```",
    "a sentence": f"{THOUGHT}\nThe final answer is {PLACE}.",
    "the bare answer": PLACE,
}
MARKS = {  # what a prompt that asks for a form has in it
    BOXED: r"\\boxed|\bboxed\b",
    LINE: r"Answer:",
    "<answer>": r"<answer>",
    "####": r"####",
    "a code block": r"```",
}
PLAIN = ("a sentence", "the bare answer")  # no prompt need ask for them
WORDS = {"yes": "no", "no": "yes", "true": "false", "false": "true"}


HABITS = (
    "Okay, first, let me think. Hmm, wait. Let me double-check and verify this with care. "
    "Actually, alternatively, however, because of that, therefore, so, finally: Aha! I am sure."
)
LONGER = 40  # times that a thought is repeated in a long response
AFTERWARDS = 10 * "\nThis was found step by step, and holds when it is put into what was asked."
CLASSES = 8  # different answers of one word that a policy could list
SENTENCE = 4  # words of an answer that a policy would not put into a box


class Trial(NamedTuple):
    """Responses to one row; "" where the answer has none of the kind.

    Right ones are gold; long: it behind many words; habits: behind words that thoughts often have;
    behind: many words behind its box; dollars: a number written as a formula; short: the number at
    the end of an answer that is a sentence. The others must not be paid as the gold is: nothing, a
    wrong answer, half of the gold, the gold taken back, the form without an answer, a part of a
    number, its other digits, its other sign, code that computes it, the answers of all rows.
    """

    gold: str
    empty: str
    wrong: str
    truncated: str
    doubled: str
    blank: str
    start: str
    end: str
    dotted: str
    long: str
    short: str
    negated: str
    evaluated: str
    listed: str
    behind: str
    dollars: str
    habits: str


def asked_forms(prompts: Sequence[str]) -> list[str]:
    """The forms that all of the prompts ask for."""
    if not prompts:
        return []
    forms = []
    for name, mark in MARKS.items():
        if all(re.search(mark, prompt) for prompt in prompts):
            forms.append(name)
    return forms


def write_answer(form: str, answer: str) -> str:
    return FORMS[form].replace(PLACE, answer)


def trial(form: str, answer: str, others: Sequence[str]) -> Trial:
    """The responses to a row with this answer; others: those of other rows."""
    gold = write_answer(form, answer)
    wrong = write_answer(form, wrong_answer(answer, others))
    digits = re.fullmatch(r"\d{2,18}", answer) is not None
    number = re.fullmatch(r"-?\d+(?:\.\d+)?", answer) and float(answer)
    last = re.search(r"(-?\d[\d,]*(?:\.\d+)?)\W*$", answer)
    classes = sorted({*others, answer})
    listed = 1 < len(classes) <= CLASSES and all(map(str.isalpha, classes))
    sentence = last and len(re.findall(r"(?<!\\)\b[^\W\d_]{2,}", answer)) >= SENTENCE
    return Trial(
        gold=gold,
        empty="",
        wrong=wrong,
        truncated=gold[: len(gold) // 2],
        doubled=f"{gold}\n\nNo, that is not it.\n{wrong}",
        blank=write_answer(form, "") if form not in PLAIN else "",
        start=write_answer(form, answer[:1]) if digits else "",
        end=write_answer(form, f"{int(answer[0]) % 9 + 1}{answer[1:]}") if digits else "",
        dotted=write_answer(form, f"{answer[0]}.{answer[1:]}")
        if digits and int(answer[1:])
        else "",
        long=LONGER * f"{THOUGHT}\n" + gold,
        short=write_answer(form, last[1]) if last and sentence else "",
        negated=write_answer(form, f"-{answer}".removeprefix("--")) if number else "",
        evaluated=write_answer(form, f"len(range({int(answer) + 1}))-True") if digits else "",
        listed=write_answer(form, ", ".join(classes)) if listed else "",
        behind=gold + AFTERWARDS if form == BOXED else "",
        dollars=write_answer(form, f"${answer}$") if number and form == LINE else "",
        habits=f"{HABITS}\n{gold}",
    )


def wrong_answer(answer: str, others: Sequence[str]) -> str:
    """An answer that is wrong: its last digit or its letter is the next, else another row's."""
    digits = list(re.finditer(r"\d", answer))
    if digits:
        last = digits[-1]
        return f"{answer[: last.start()]}{(int(last[0]) + 1) % 10}{answer[last.end() :]}"
    if re.fullmatch(r"[A-Z]", answer):
        if answer in ("D", "Z"):
            return "A"
        return chr(ord(answer) + 1)
    if answer.lower() in WORDS:
        return WORDS[answer.lower()]
    differs = (o for o in others if o.strip().lower() != answer.strip().lower())
    return next(differs, f"not {answer}")


def gold_text(section: Mapping[str, Any], answer: str) -> str | None:
    """What a right response has in it; None where a row's answer does not say it."""
    verifier = section.get("verifier")
    if verifier in ("code", "code_remote", "countdown"):
        return None
    if verifier == "sql":
        return str(json.loads(answer)["query"])
    return final(answer)


def final(answer: str) -> str:
    """What a policy is to write of an answer that is a whole solution: after ####, or boxed."""
    _, mark, last = answer.rpartition("####")
    if mark:
        return last.strip()
    return boxed(answer) or answer
