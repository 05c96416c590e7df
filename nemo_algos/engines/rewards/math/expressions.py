"""What the text of an answer says, in sympy: read by the parser of math-verify."""

import re
from cmath import isclose
from collections import Counter
from functools import lru_cache
from itertools import pairwise

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from sympy.logic.boolalg import Boolean

from nemo_algos.engines.rewards.math.latex_normalization import without_remarks

Value = sympy.Basic | sympy.MatrixBase | str
Parsed = list[Value]  # the value, where there is one, and the text: either may be the gold's

NORMAL = NormalizationConfig(malformed_operators=True, nits=True, boxed="none")
HUNDREDTH = sympy.Rational(1, 100)
ONE_PERCENT = sympy.UnevaluatedExpr(HUNDREDTH)  # what a number is multiplied by for "%"
EQUALS = re.compile(r"(?<![<>!\\])=|\\(?:approx|equiv)(?![a-z])")
ELEMENT = re.compile(r",(?!\d{3}(?!\d))|;| or | and ")
INEQUALITY = re.compile(r"[<>]|\\(?:[lg](?:eq?|t)(?![a-z])|[lg]eqslant)")
OPEN_INTERVAL = re.compile(r"\\in(?![a-z])\s*(?:\\left\s*)?\(|^\s*\]")  # x \in (1, 3), ]1, 3[
UNEQUAL = re.compile(r",(?=[^,]*(?:\\neq?(?![a-z])|\\not\s*=))")  # x < 5, x \ne 3
FALLING = re.compile(  # 5 > x > 3
    r"([^<>,;]+?)(>|\\g(?:eq?|t)(?![a-z])|\\geqslant)([^<>,;]+?)"
    r"(>|\\g(?:eq?|t)(?![a-z])|\\geqslant)([^<>,;]+?)(?=$| or | and )"
)
ABSOLUTE = re.compile(r"\||\\[lr]?vert(?![a-z])|\\abs(?![a-z])")
JOINED = ((" or ", sympy.Union), (" and ", sympy.Intersection))
# relative differences
EXACT = 1e-9
ROUNDED = 0.01


def expression(text: str) -> Parsed:
    if INEQUALITY.search(text):
        text = FALLING.sub(_rising, UNEQUAL.sub(" and ", text))
    region = _region(text) if INEQUALITY.search(text) else None
    text = normalize_latex(without_remarks(text), NORMAL)
    try:
        return [region or _latex(text), text]
    except Exception:  # of whatever kind the grammar raises
        left, _, right = text.rpartition("=")
        if left and not ELEMENT.search(left):
            return expression(right)
        return [text]


@lru_cache(maxsize=64)
def _latex(text: str) -> sympy.Basic | sympy.MatrixBase:
    try:
        return latex2sympy(text, is_real=True, normalization_config=None)  # pyright: ignore
    except Exception:
        if r"\pm" not in text or "," in text:
            raise
        return sympy.FiniteSet(*(_latex(text.replace(r"\pm", sign)) for sign in "+-"))


def _rising(match: re.Match[str]) -> str:
    high, first, middle, second, low = match.groups()
    less = [sign.replace(">", "<").replace(r"\g", r"\l") for sign in (second, first)]
    return f"{low} {less[0]} {middle} {less[1]} {high}"


def _region(text: str) -> sympy.Set | None:
    """What |x| < 2 holds for, or several inequalities, joined by "or" or by "and"."""
    for word, joined in JOINED:
        if word in text:
            regions = [_region(part) or _solved(part) for part in text.split(word)]
            return None if None in regions else joined(*regions)
    if ABSOLUTE.search(text):
        return _solved(text)
    return None


def _solved(text: str) -> sympy.Set | None:
    try:
        found = _latex(normalize_latex(without_remarks(text), NORMAL))
        if isinstance(found, Boolean) and not isinstance(found, sympy.Eq):
            return found.as_set()
    except Exception:
        pass
    return None


def is_region(written: str) -> bool:
    """Whether an answer, as it is written, says where a value lies."""
    return bool(INEQUALITY.search(written) or OPEN_INTERVAL.search(written))


def consistent(text: str) -> bool:
    """Whether the numbers of a chain such as 2 + 3 = 5 are equal."""
    if not EQUALS.search(text):
        return True
    for chain in ELEMENT.split(text):
        sides = map(_number, EQUALS.split(chain))
        numbers = [number for number in sides if number is not None]
        tolerance = ROUNDED if "." in chain or r"\approx" in chain else EXACT
        if not all(isclose(a, b, rel_tol=tolerance) for a, b in pairwise(numbers)):
            return False
    return True


def _number(text: str) -> complex | None:
    value = expression(text)[0]
    try:
        if isinstance(value, sympy.Expr) and value.is_number:
            return complex(value.doit())
        return None
    except (TypeError, ValueError, OverflowError):  # zoo, nan, 9^(9^9)
        return None


def complexified(value: Value) -> Value:
    """`value` with the imaginary unit for i, which is read as a variable."""
    i = sympy.Symbol("i", real=True)
    if isinstance(value, sympy.Expr) and i in value.free_symbols:  # not of a sum's index
        return value.subs(i, sympy.I)  # pyright: ignore
    return value


def has_percent(parsed: Parsed) -> bool:
    return bool(parsed) and not isinstance(parsed[0], str) and parsed[0].has(ONE_PERCENT)


def percent_as_value(parsed: Parsed) -> Parsed:
    # The text goes too: "42" of "42%" would be compared as text.
    return [parsed[0].xreplace({ONE_PERCENT: HUNDREDTH})]  # pyright: ignore


def repeats(value: Value) -> list[str]:
    """What a list, which math-verify reads as a set, has more than once."""
    args = getattr(value, "_unsorted_args", ()) if isinstance(value, sympy.FiniteSet) else ()
    listed = Counter(map(str, args))
    return sorted((listed - Counter(listed.keys())).elements())


def coordinates(value: Value) -> sympy.Tuple | None:
    """(1, 2) for x=1, y=2, in the order of the names; () where some have none or the same."""
    if isinstance(value, sympy.Eq):
        if isinstance(value.rhs, sympy.FiniteSet):  # x = 1, 2
            return sympy.Tuple()
        return None
    if not isinstance(value, sympy.FiniteSet) or not value.atoms(sympy.Eq):
        return None
    named = {str(x.lhs): x.rhs for x in value.args if isinstance(x, sympy.Eq)}
    if len(named) < len(value.args):
        return sympy.Tuple()
    return sympy.Tuple(*(named[name] for name in sorted(named)))
