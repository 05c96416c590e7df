"""The reward of a mathematical answer, by symbolic equality with the gold (math-verify)."""

import logging
import re
from functools import lru_cache
from typing import NamedTuple

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Eq, Expr, FiniteSet, Float, Interval, Number, Rational, Tuple, floor, log

from nemo_algos.engines.rewards.answers import boxes, joined, letter, tagged
from nemo_algos.engines.rewards.math import expressions
from nemo_algos.engines.rewards.math import latex_normalization as latex
from nemo_algos.engines.rewards.math.expressions import (
    NORMAL,
    Parsed,
    complexified,
    expression,
    has_percent,
)
from nemo_algos.engines.rewards.math.latex_normalization import BASE, MODULUS, compound, unit

# Markdown around a box says nothing: `**\boxed{42}**` is `\boxed{42}`, `2*\boxed{21}` is not. A
# text is read as a skeleton, a line at a time: a box, or a formula, is one character of it, so that
# no star inside is taken for Markdown's, and what a star outside means is seen by its neighbours.
# Characters read before the last box, and behind it:
MARKUP_BEFORE = 4096
MARKUP_AFTER = 512
WHOLE = "\ue000"  # stands for a box or a formula
WITHIN = r"(?:(?!\n\s*\n).){0,999}?"  # a paragraph
FORMULA = re.compile(
    rf"\\\$|\$\${WITHIN}\$\$|\$[^$\n]+\$|\\\({WITHIN}\\\)|\\\[{WITHIN}\\\]"
    rf"|\\begin\{{(\w+\*?)\}}{WITHIN}\\end\{{\1\}}",
    re.DOTALL,
)
# `2*x*3` is no emphasis: what opens stands behind no operand
EMPHASIS = [
    re.compile(
        rf"(?<![\w)}}\]{before}*~`])({marks})(?=[^\s*])([^\n]{{0,400}}?[^\s*])\1{behind}", re.A
    )
    for marks, before, behind in (
        (r"\*\*\*|\*\*|___?|~~|`{1,3}", "", ""),
        (r"\*(?!\*)|_(?!_)", WHOLE, r"(?![*_]|[ ]*[\d(\\])"),  # nor is `2 *x* 3`
    )
]
EDGES = re.compile(rf"(?m)(^[ \t>]*|[:(\"\u201c\uff1a][ \t]*)[*_`]+[ \t]*(?={WHOLE})")
# `-` without a space is a list's where the line above is an item too; else it may be a minus
ITEM = re.compile(rf"(?m)(^[ \t]*[-*+](?:[ \t*]|[A-Za-z]{{2}})[^\n]*\n\s*)[-+](?={WHOLE})")
IN_JSON = re.compile(r"(?<!\\)\\\\(?=(?:boxed|fbox)\s*\{)")
# characters read: of the end, of a box, and behind a box
TAIL = 4096
BOX = 512
NEAR = 80
UNBOXED = (LatexExtractionConfig(normalization_config=NORMAL), ExprExtractionConfig())
BEHIND = re.compile(rf"(?i)[\s$)\]\\]*(?:text\s*\{{\s*)?(%|percent|pct|(?:{latex.SCALE_WORD})\b)")
# what a box that is a part of something larger, or is taken back, has before or behind it
_FILLED = r"(?:(?:be|been|equals?|equal to|to|exactly|simply|just|an?|the|answer|value)\s+){0,4}"
BEFORE = re.compile(
    r"(?:[-+\d*/^]|[\w)}] +[<>]\s*|\\(?:times|cdot|div|neq?|not|[lg]t)\s*|\s!=\s*|[=(]\s*-\s+)$"
    r"|(?i:\b(?:not|[a-z]+n['\u2019]t|cannot|never|neither|nor|anything but|other than|instead of"
    rf"|rather than|except(?: for)?|excluding)\s+{_FILLED}"
    r"|\bdoubt (?:that )?(?:it|this|the answer) is\s+"
    r"|\b(?:rul(?:e|ed|es|ing) out|reject(?:ed|s|ing)?|discard(?:ed|s|ing)?)\s+(?:\$?\w\s*=\s*)?"
    r"|\b(?:wrong|incorrect|false)\s+(?:answer|result|value|solution|guess)\s*"
    r"(?:(?:is|was|would be)\b|:)\s*)[\s$(\\\[*:]*$|(?:不是|不等于|并非|而非|不为)[\s$]*$"
)
_LEAD = r"(?:\b(?:no|wait|but|and|hmm+|actually|sorry|oops|so|this|that|which|it)\b[\s,.:]*){0,4}"
_GOES = r"[\s$)\]\\.,;:!?*\u2013\u2014-]*"
AFTER = re.compile(
    rf"(?i:{_GOES}{_LEAD}(?:['\u2019]s|\bis|\bwas|\bseems|\bmust|\bshould|\bwould)\s+"
    r"(?:(?:clearly|obviously|actually|also|definitely|certainly)\s+)?"
    r"(?:(?:an?|the|be)\s+)?(?:wrong|incorrect|false|invalid|impossible|mistaken?|error|rejected"
    r"|discarded|ruled out)\b"
    r"(?!\s+(?:to|that|for)\b)"
    rf"|{_GOES}{_LEAD}\b(?:(?:is|was|are|do|does|did|can|could|would)(?:n['\u2019]t|\s*not)"
    r"|won['\u2019]t|will not)\s+(?:(?:be|an?|the|our|my|final|actually)\s+){0,3}"
    r"(?:right|correct|true|valid|answer|solution|work|satisfy|hold|possible|what|it)\b"
    rf"|{_GOES}{_LEAD}\bfails\b(?!\s+(?:to|for)\b)|[\s$)\]\\]*\?\s*no\s*(?:[.,;!]|$))"
    r"|[\s$,。]*(?:这|它)?(?:是)?(?:错|不对|不正确|不是)"
    r"|[\s$]*(?:lakhs?|crores?|k)\b|(?:[.,]|\{,\})?\d|\^(?!\s*\{?\s*\\circ)"
    r"|\s*\\(?:cdot|times|pi|sqrt|frac|pm)(?![a-z])|\s*\*{1,2}\s*[\d(]|[-+/]\d"
)
LETTER = re.compile(rf"(?<=[\d)}}])(?:\s*[A-Za-z](?<![kK])(?:\^\s*\{{?[23]\}}?)?|{latex.SPACE}+K)$")
RESIDUES = re.compile(r"\s*[-+]?\d+(?:\s*,\s*-?\d+)*\s*")
_WHERE = (
    rf"(?:{latex.SPACE}|[,;(]"
    r"|\\text\s*\{[\s,(]*(?:where|with|for(?: all| any| some| every)?)?\s*\})+"
)
# f(x) = ... and ..., k \in \mathbb{Z}: their names may be others
BOUND = (
    re.compile(r"^(?=\s*(?P<kind>[a-zA-Z])\s*\(\s*(?P<name>[a-zA-Z])\s*\)\s*=)"),
    re.compile(
        rf"{_WHERE}(?P<name>[a-zA-Z])\s*\\in(?![a-z])\s*(?:\\(?:mathbb|mathbf|Bbb)\s*\{{?\s*)?"
        r"(?P<kind>[A-Z])\s*\}?[\s.)]*$"
    ),
)
NAMES = re.compile(r"\\text\s*\{[^{}]*\}|\\[a-zA-Z]+|[a-zA-Z]{3,}| (?:and|or) |[a-zA-Z]")
FAMILY = re.compile(  # x = 7k + 3, k \in \mathbb{Z}
    r"^\s*(?:[a-zA-Z]\s*=\s*)?(?:(?P<first>-?\d+)\s*\+\s*)?(?P<modulus>\d+)\s*(?P<name>[a-zA-Z])"
    rf"(?:\s*(?P<sign>[-+])\s*(?P<last>\d+))?{_WHERE}(?P=name)\s*\\in(?![a-z])\s*"
    r"(?:\\mathbb\s*\{?\s*)?Z\s*\}?[\s.)]*$"
)
NAMED = re.compile(r"(?:^|[,;}]| or | and )\s*([a-z])\s*(?:=|\\equiv)")
IN_DEGREES = re.compile(
    rf"(\d+(?:\.\d+)?|\\d?frac\{{\d+\}}\{{\d+\}})\s*"
    rf"(?:{latex.DEGREES.pattern}|\\text\s*\{{\s*degrees?\s*\}})"
    r"(?!\s*(?:\\(?:text|mathrm)\s*\{\s*)?[CFK])"
)
# a word, or a chemical formula without its fonts: h2o, so4^2-
WORD = re.compile(r"(?=.*[^\W\d]{3})\w+|[a-z][a-z\d()]*\d[a-z\d()]*(?:\^\d*[+-])?|[a-z]+\^\d*[+-]")
# a gold that is an option of multiple choice, and the option that ends a response without a box
OPTION = re.compile(r"^(?:\\text\s*\{)?\s*\(?([A-Z])\)?\.?\s*\}?$")
CHOSEN = re.compile(
    r"(?:\*\*|[_($]|\\text[a-z]*\s*\{){1,4}([A-Z])(?=[).*_}$:])(?:\\[a-zA-Z]+|[^a-zA-Z\n?])*$"
)
ASSIGNED = re.compile(r"^.*(?:=|\\in(?![a-z]))")
BRACKETS = {
    "{": re.compile(r"\s*(?:\\left)?\\\{"),
    "[": re.compile(r"\s*(?:\\left)?\[[^][]*,[^][]*\]$"),
    "(": re.compile(r"\s*(?:\\left)?\((?!.*\\(?:cup|cap|infty))(?:[^()]|\([^()]*\))*\)$"),
}


def without_markup(text: str) -> str:
    """`text` without the Markdown around its last boxes; of JSON, without the doubled backslash."""
    if IN_JSON.search(text):
        text = text.replace("\\\\", "\\")
    places = boxes(text)
    if not places:
        return text
    start, end = places[-1]
    first = max(0, start - MARKUP_BEFORE)
    if first:
        first = max(first, text.find("\n", first, start))  # a whole line, where there is one
    return text[:first] + _bared(text[first : end + MARKUP_AFTER]) + text[end + MARKUP_AFTER :]


def _bared(text: str) -> str:
    whole = _whole(text)
    pieces = iter([text[start:end] for start, end in whole])
    ends = [0, *(end for _, end in whole)]
    starts = [*(start for start, _ in whole), len(text)]
    between = (text[a:b] for a, b in zip(ends, starts, strict=True))
    skeleton = WHOLE.join(part.replace(WHOLE, " ") for part in between)
    for pattern in EMPHASIS:
        skeleton = pattern.sub(r"\2", skeleton)
    skeleton = ITEM.sub(r"\1", EDGES.sub(r"\1", skeleton))
    return re.sub(WHOLE, lambda _: next(pieces), skeleton)


def _whole(text: str) -> list[tuple[int, int]]:
    """Where formulas are, and the innermost boxes outside them."""
    found = [(match.start(), match.end()) for match in FORMULA.finditer(text)]
    whole = list[tuple[int, int]]()
    last = 0
    for start, end in sorted(found + _innermost(boxes(text))):
        if start >= last:
            whole.append((start, end))
            last = end
    return whole


def _innermost(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    following = [start for start, _ in places[1:]] + [10**9]
    return [p for p, start in zip(places, following, strict=True) if p[1] <= start]


# Its warnings would say, once per worker, that its timeouts are off; they are, see verify_math.
logging.getLogger("math_verify").setLevel(logging.ERROR)


class Gold(NamedTuple):
    written: str
    text: str
    option: str  # of multiple choice
    least: str  # residue
    letters: str  # where it names an unknown, else empty
    parsed: Parsed
    is_percentage: bool
    is_number: bool
    is_whole: bool  # and not 0
    is_region: bool
    unit: Expr | None


def verify_math(response: str, answer: str) -> float:
    """1.0 where the last answer in `response` equals the gold `answer`, else 0.0.

    The last box (`\\boxed{...}`, `\\fbox{...}`, `<answer>...</answer>`) is the answer, wherever it
    stands, together with boxes joined to it by a comma, "and" or "or". Without one, it is the last
    LaTeX or plain number of the last 4096 characters, with those listed before it. A box of more
    than 512 characters is no answer, nor is what is left open: `17\\text{ or so}`, `17 = 18`,
    `17, \\ldots`, and `\\leq 5` or `\\neq 5` for 5 (docs/rewards.md has all rules).

    A percentage is its value, and no answer to a whole number but 0: `42\\%` answers 0.42, and
    neither it nor `4200\\%` answers 42. To a gold percentage, `42\\%`, 42 and 0.42 are all right.
    An answer without a unit is right for any unit of the gold, one with another unit, number base
    or modulus wrong (`units.unit`). Floats agree to 6 decimals, of a gold below 0.1 or from 1e15 on
    to 6 digits.

    It has no time limit of its own (math-verify's needs signals, which work in a main thread only)
    and some responses never end, such as `9^{9^{9^9}}`: run it in a `VerifierPool`.

    Raises ValueError where `answer` holds nothing that can be compared.
    """
    gold = _read_gold(answer)
    if gold.option and letter(response) == gold.option and not boxes(response):
        response = CHOSEN.sub(r"\\boxed{\1}", response)
    text, units = _final_answer(response)
    if gold.option and letter(rf"\boxed{{{text}}}") == gold.option:
        return 1.0
    if gold.letters and any(name not in gold.letters for name in NAMED.findall(text.lower())):
        return 0.0
    gold, text = _aligned(gold, text)
    is_region = expressions.is_region(text)
    if gold.unit is not None and any(found not in (None, gold.unit) for found in units):
        return 0.0
    text = _spelled(text, in_base=gold.unit is not None)
    if gold.is_number and units[0] is not None:
        text = LETTER.sub("", text)
    if not text or latex.undecided(text, gold.text) or not expressions.consistent(text):
        return 0.0
    if "=" not in gold.text and latex.unsolved(text):
        return 0.0
    words, given = (
        re.sub(r"\\(?:text|mathrm|ce|operatorname)|[\s{}]|_(?=\s*\{?\s*\d)", "", x).lower()
        for x in (gold.text, text)
    )
    same_words = words == given and bool(words.isalpha() or WORD.fullmatch(words))
    return float(same_words or _equal(gold, text, expression(text), is_region))


@lru_cache(maxsize=4096)
def _read_gold(answer: str) -> Gold:
    answer = latex.characters(answer)
    text = _spelled(answer, in_base=True)
    if not re.search(r"\w", text) or re.fullmatch(r"(?i)[-+]?(?:nan|inf)", answer.strip()):
        raise ValueError(f"the gold answer {answer!r} cannot be read. Write the final answer only.")
    parsed = expression(text)[-1:] if compound(answer) else expression(text)
    value = complexified(parsed[0])
    is_number = isinstance(value, Expr) and value.is_number is True
    is_whole = isinstance(value, Number) and value != 0 and value % 1 == 0
    return Gold(
        written=answer,
        text=text,
        option="".join(OPTION.findall(text)),
        least=_spelled(answer, in_base=False),
        letters=latex.COMMAND.sub("", latex.TEXT.sub("", answer)).lower()
        if NAMED.search(answer.lower())
        else "",
        parsed=[value, *parsed[1:]],
        is_percentage=has_percent(parsed),
        is_number=is_number,
        is_whole=is_whole,
        is_region=expressions.is_region(answer),
        unit=unit(answer),
    )


def _aligned(gold: Gold, answer: str) -> tuple[Gold, str]:
    """Both in the same terms, where both say which.

    10 and 3 modulo 7 are 3; of `f(t)=2t` and `n\\pi, n \\in \\mathbb{Z}` the gold gives the names;
    degrees become radians where the other is in radians.
    """
    family = FAMILY.sub(r"\g<first>\g<sign>\g<last> \\pmod{\g<modulus>}", answer)
    if MODULUS.search(gold.written) and unit(family) == gold.unit and "?" not in gold.least:
        return _read_gold(gold.least), _spelled(family, in_base=False)
    for bound in BOUND:
        ours, theirs = bound.search(gold.written), bound.search(answer)
        if ours and theirs and ours["kind"] == theirs["kind"]:
            names = {ours["name"]: theirs["name"], theirs["name"]: ours["name"]}
            answer = NAMES.sub(lambda x, names=names: names.get(x[0], x[0]), bound.sub("", answer))
            gold = _read_gold(bound.sub("", gold.written))
    units = [str(gold.unit), str(unit(answer))]
    radians = "radian" in units or r"\pi" in gold.written + answer
    if radians and units.count("degree") == 1 and {*units} <= {"degree", "radian", "None"}:
        written, answer = (IN_DEGREES.sub(r"(\1\\pi/180)", x) for x in (gold.written, answer))
        return _read_gold(latex.without_remarks(written)), answer
    return gold, answer


def _final_answer(response: str) -> tuple[str, list[Expr | None]]:
    """What is the answer, as it was written, and the units that it names."""
    response = without_markup(tagged(response))
    places = boxes(response)
    if not places:
        tail = latex.characters(response[-TAIL:])
        return _unboxed(tail), [unit(tail.rstrip().rpartition("\n")[2])]
    start, end = places[-1]
    text = latex.characters(joined(response, places))
    before = response[max(0, start - NEAR) : start]
    after = latex.characters(response[end : end + NEAR])
    if max(end - start, len(text)) > BOX or BEFORE.search(before) or AFTER.match(after):
        return "", [None]
    units = [unit(text), unit(text + re.split(r"[.,;:\n]", after)[0])]
    match = BEHIND.match(after)
    if match:
        word = match[1].lower()
        text += f" {word}" if word in latex.SCALES else r"\%"
    return text, units


def _unboxed(tail: str) -> str:
    """The last LaTeX or plain number."""
    found = parse(latex.prose(tail), UNBOXED, parsing_timeout=None)  # pyright: ignore
    text = next((text for text in found if isinstance(text, str)), "")
    return text + (r"\%" if has_percent(found) and "%" not in text else "")


def _spelled(answer: str, in_base: bool) -> str:
    """`answer` as it is read; in_base: of a number with a base the digits count, not the value."""
    modulus = MODULUS.search(answer)
    if modulus:
        answer = re.sub(r"^(?!.*\\not).*\\equiv", "", MODULUS.sub("", answer))
        if not in_base:
            answer = _residues(answer, int(modulus[1]))
    answer = BASE.sub(lambda match: match[1] if in_base else _value(match[1], match[2]), answer)
    return latex.trimmed(latex.spell(answer))


def _residues(answer: str, modulus: int) -> str:
    """2 for 27 modulo 5; "?" where its value would have to be computed."""
    if RESIDUES.fullmatch(answer) and modulus:
        return ", ".join(str(int(number) % modulus) for number in answer.split(","))
    if re.search("[a-zA-Z]", answer):
        return answer
    return "?"


def _value(digits: str, base: str) -> str:
    try:
        return str(int(digits, int(base)))
    except ValueError:
        return "?"


def _equal(gold: Gold, text: str, given: Parsed, is_region: bool) -> bool:
    if has_percent(given) and not gold.is_percentage:
        if gold.is_whole:
            return False
        given = expressions.percent_as_value(given)
    value = gold.parsed[0]
    other = given[0]
    if isinstance(other, Eq) and isinstance(value, Expr):
        other = other.rhs
    other = complexified(other)
    if gold.is_number and isinstance(other, Expr) and other.free_symbols:
        return False  # "0 apples, 5 pears" is 0 to math-verify
    kinds = {_bracket(text), _bracket(gold.text)} - {""}
    if len(kinds) > 1 or (gold.is_number and "[" in kinds):
        return False
    # math-verify takes 1 < x < 3 for the list 1, 3
    rest = value if is_region else other
    if is_region != gold.is_region and isinstance(rest, FiniteSet | Eq | Expr):
        return False
    if expressions.repeats(value) != expressions.repeats(other):
        return False
    found = expressions.coordinates(other) if isinstance(value, Tuple | Interval) else None
    if found is not None:
        return verify(value, found, timeout_seconds=None)
    if isinstance(value, Expr) and gold.is_number and isinstance(other, Expr):
        scale = 1 if gold.is_percentage else _scale(value)
        if scale != 1:
            return verify(value * scale, other * scale, timeout_seconds=None)
    given = [other, *given[1:]]
    return verify(gold.parsed, given, allow_set_relation_comp=True, timeout_seconds=None)


@lru_cache(maxsize=4096)
def _scale(gold: Expr) -> Expr:
    """The power of 10 that brings a small or large number into [0.1, 1), else 1."""
    # Math-verify rounds to 6 decimals, and to it all numbers below 1e-15 are 0.
    size = abs(gold.evalf())
    if 0 < size < 0.1 or (gold.has(Float) and size >= 10**15):
        return Rational(10) ** (-1 - int(floor(log(size, 10))))
    return Rational(1)


def _bracket(text: str) -> str:
    if expressions.INEQUALITY.search(text):
        return ""
    if " or " in text:
        return "{"
    text = ASSIGNED.sub("", text)
    for kind, shape in BRACKETS.items():
        if shape.match(text):
            return kind
    return ""
