"""The reward of a mathematical answer, by symbolic equality with the gold (math-verify)."""

import logging
from functools import lru_cache

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Basic, MatrixBase, Rational, UnevaluatedExpr

Parsed = list[Basic | MatrixBase | str]

BOXED_FIRST = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
ONE_PERCENT = UnevaluatedExpr(Rational(1, 100))  # what math-verify multiplies by for "%"

# Its warnings would say, once per worker, that its timeouts are off; they are, see verify_math.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def verify_math(response: str, answer: str) -> float:
    """1.0 where the last answer in `response` equals the gold `answer`, else 0.0.

    The response is read boxed first (`\\boxed{...}`), then other LaTeX, then a plain number. A
    percentage is its value: `42\\%` answers 0.42 and not 42, unless the gold is itself a percentage
    (then `42\\%`, 42 and 0.42 all do).

    It has no time limit of its own (math-verify's needs signals, which work in a main thread only)
    and some responses never end, such as `9^{9^{9^9}}`: run it in a `VerifierPool`.

    Raises:
        ValueError: `answer` holds nothing that can be compared.
    """
    gold = _parse_gold(answer)
    given = parse(response, BOXED_FIRST, parsing_timeout=None)  # pyright: ignore
    if not _has_percent(gold):
        given = _percent_as_value(given)
    return float(verify(gold, given, timeout_seconds=None))


@lru_cache(maxsize=4096)
def _parse_gold(answer: str) -> Parsed:
    # Without the box math-verify misreads bare golds: `27.0`, `1,234`, `\frac12`.
    boxed = rf"\boxed{{{answer}}}"
    gold = parse(boxed, BOXED_FIRST, parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    if not gold:
        raise ValueError(f"The gold answer {answer!r} is unreadable: give the final answer alone.")
    return gold


def _has_percent(parsed: Parsed) -> bool:
    return bool(parsed) and not isinstance(parsed[0], str) and parsed[0].has(ONE_PERCENT)


def _percent_as_value(parsed: Parsed) -> Parsed:
    # The text of the match goes too: math-verify keeps "42" of "42%", and would compare it as text.
    if not _has_percent(parsed):
        return parsed
    return [parsed[0].xreplace({ONE_PERCENT: Rational(1, 100)})]  # pyright: ignore
