"""The reward of a mathematical answer, by symbolic equality with the gold (math-verify)."""

import logging
import re
from functools import lru_cache
from typing import NamedTuple

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Basic, Expr, MatrixBase, Number, Rational, UnevaluatedExpr, floor, log

from nemo_algos.rewards.answers import boxed, last_box
from nemo_algos.rewards.units import compound, unit

Parsed = list[Basic | MatrixBase | str]

TAIL, BOX, NEAR = 4096, 512, 40  # characters read: of the end, of a box, and behind a box
BOXED_FIRST = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
ONE_PERCENT = UnevaluatedExpr(Rational(1, 100))  # what math-verify multiplies by for "%"
JOINT = re.compile(r"\}[\s$]*(?:[,;]|,?\s*(?:and|or))?[\s$]*$")  # between boxes of one answer
TAG = re.compile(r"<answer>\s*([^<>\s][^<>]{0,511})</answer>")
RELATION = re.compile(r"[\s$]*(?:\\(?:neq?|not|[lg]eq?|[lg]eqslant|[lg]t)(?![a-zA-Z])|!=|[<>≠≤≥])")
SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
SCALE_WORD = "|".join(SCALES)
BETWEEN = r"(?<=[\d}])((?:[\s$~]|\\[,:; ])*(?:\\(?:text|mbox|mathrm)\s*\{\s*)?)"
SCALE = re.compile(rf"{BETWEEN}({SCALE_WORD})s?(?![a-z])", re.IGNORECASE)
BEHIND = re.compile(rf"[\s$)\]\\]*(%|percent|pct|(?:{SCALE_WORD})\b)", re.IGNORECASE)
# What math-verify misreads, and how it reads it.
SPELLINGS = [
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"(\d)[eE]([+-]?\d+)", r"\1 \\times 10^{\2}"),  # 4e33: 4 times e times 33
        (r"°", r"^\\circ"),
        (r"~", " "),
        (r"\\\$|(?<=\d)\s+(?:dollar|euro)s?\b", ""),  # read as products of letters
        (r"(?<=\d)\\[,:; ](?=\d{3}(?!\d))", ""),  # 1\,234
        (r"(\\[dt]?frac)\s*(\\[a-zA-Z]+)(?![a-zA-Z{])", r"\1{\2}"),  # \frac\pi2
        (r"\\varnothing", r"\\emptyset"),
        (r"\\(?:text)?color\s*\{[^{}]*\}", ""),
        (r"(?<=\d)\.(?=\s*\}$)", ""),
        (r"(?i:answer)", ""),  # it would prefer what follows this word to the last number
    )
]

# Its warnings would say, once per worker, that its timeouts are off; they are, see verify_math.
logging.getLogger("math_verify").setLevel(logging.ERROR)


class Gold(NamedTuple):
    parsed: Parsed
    is_percentage: bool
    is_whole: bool  # and not 0
    unit: Expr | None
    is_plain: bool  # without a relation and with one unit at most
    magnifier: int  # the power of 10 that brings a number below 0.1 into [0.1, 1), else 1


def verify_math(response: str, answer: str) -> float:
    """1.0 where the last answer in `response` equals the gold `answer`, else 0.0.

    The last box (`\\boxed{...}`) is the answer, wherever it stands, together with boxes joined to
    it by a comma, "and" or "or"; `<answer>...</answer>` is a box. Without one, it is the last LaTeX
    or plain number of the last 4096 characters. A box of more than 512 characters is no answer,
    and `\\neq 5`, `\\leq 5` or `5\\text{ ft }6\\text{ in}` none to 5.

    A percentage is its value, and no answer to a whole number but 0: `42\\%` answers 0.42, and
    neither it nor `4200\\%` answers 42. To a gold percentage, `42\\%`, 42 and 0.42 are all right.
    An answer without a unit is right for any unit of the gold, one with another unit or number base
    wrong (`units.unit`). Floats agree to 6 decimals, of a gold below 0.1 to 6 digits.

    It has no time limit of its own (math-verify's needs signals, which work in a main thread only)
    and some responses never end, such as `9^{9^{9^9}}`: run it in a `VerifierPool`.

    Raises:
        ValueError: `answer` holds nothing that can be compared.
    """
    gold = _read_gold(answer)
    content, text, units = _final_answer(TAG.sub(r"\\boxed{\1}", response))
    if gold.is_plain and not _is_plain(content):
        return 0.0
    if gold.unit is not None and any(found not in (None, gold.unit) for found in units):
        return 0.0
    given = _parse(text)
    if _has_percent(given) and not gold.is_percentage:
        if gold.is_whole:
            return 0.0
        given = _percent_as_value(given)
    return float(verify(*_magnified(gold, given), timeout_seconds=None))


@lru_cache(maxsize=4096)
def _read_gold(answer: str) -> Gold:
    # Without the box math-verify misreads bare golds: `27.0`, `1,234`, `\frac12`.
    parsed = _parse(rf"\boxed{{{answer}}}")
    if not parsed:
        raise ValueError(f"The gold answer {answer!r} is unreadable: give the final answer alone.")
    value, is_percentage = parsed[0], _has_percent(parsed)
    is_whole = isinstance(value, Number) and value != 0 and value % 1 == 0
    magnifier = 1 if is_percentage else _magnifier(value)
    return Gold(parsed, is_percentage, is_whole, unit(answer), _is_plain(answer), magnifier)


def _is_plain(answer: str) -> bool:
    return RELATION.match(answer) is None and not compound(answer)


def _parse(text: str) -> Parsed:
    for pattern, spelling in SPELLINGS:
        text = pattern.sub(spelling, text)
    text = SCALE.sub(lambda match: f"*{SCALES[match[2].lower()]}{match[1]}", text)
    return parse(text, BOXED_FIRST, parsing_timeout=None)  # pyright: ignore[reportArgumentType]


def _final_answer(response: str) -> tuple[str, str, list[Expr | None]]:
    """The content of the box, "" without one; what math-verify is to read; the units named."""
    place = last_box(response)
    if place is None:
        tail = response[-TAIL:]
        return "", tail, [unit(tail.rstrip().rpartition("\n")[2])]
    start, end = place
    if end - start > BOX:
        return "", "", []
    before, after = response[max(0, end - TAIL) : start], response[end : end + NEAR]
    # Math-verify would merge boxes less than ten characters apart, as in "not [17], so [18]".
    text = (before if JOINT.search(before[-NEAR:]) else "") + response[start:end]
    if match := BEHIND.match(after):
        word = match[1].lower()
        text = text[:-1] + (f" {word}}}" if word in SCALES else r"\%}")
    content = boxed(response[start:end]) or ""
    return content, text, [unit(content), unit(content + re.split(r"[.,;:\n]", after)[0])]


def _has_percent(parsed: Parsed) -> bool:
    return bool(parsed) and not isinstance(parsed[0], str) and parsed[0].has(ONE_PERCENT)


def _percent_as_value(parsed: Parsed) -> Parsed:
    # The text of the match goes too: math-verify keeps "42" of "42%", and would compare it as text.
    return [parsed[0].xreplace({ONE_PERCENT: Rational(1, 100)})]  # pyright: ignore


def _magnifier(gold: object) -> int:
    if not isinstance(gold, Expr) or not gold.is_number:
        return 1
    size = abs(gold.evalf())
    return 10 ** (-1 - int(floor(log(size, 10)))) if 0 < size < 0.1 else 1


def _magnified(gold: Gold, given: Parsed) -> tuple[Parsed, Parsed]:
    # math-verify rounds to 6 decimals, and to it all numbers below 1e-15 are 0.
    if gold.magnifier == 1 or not given or not isinstance(given[0], Expr):
        return gold.parsed, given
    return [gold.parsed[0] * gold.magnifier], [given[0] * gold.magnifier]  # pyright: ignore
