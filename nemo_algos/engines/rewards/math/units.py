"""The unit, number base or modulus of an answer, all of which math-verify ignores."""

import re

import sympy.physics.units
from sympy import Expr, Integer, Symbol
from sympy.physics.units import Quantity
from sympy.physics.units.quantities import PhysicalConstant

TEXT = re.compile(r"\\(?:text|textbf|textrm|mathrm|operatorname|mbox|rm)\s*\{([^{}]*)\}")
DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree|°")
SIGN = re.compile(r"(\\\$|€|£)\s*([\d.,{}]*\d)")
NOISE = re.compile(r"\\[,;!()\[\] ]|[$~*]")
BASE = re.compile(r"(?<![a-zA-Z])\(?(\d+)\)?_\s*\{?\s*(\d+)\s*\}?[\s.]*$")
MODULUS = re.compile(r"\s*\(?\s*\\?(?:text\s*\{\s*)?[pb]?mod(?![a-z])\s*\}?\s*\{?\s*(\d+)[}\s).]*$")
_FACTOR = (
    r"(?:(?P<area>sq(?:uare|\.)?|cu(?:bic|\.)?)\s+)?(?P<word>[A-Za-z]+)"
    r"(?:(?:\s*\^\s*\{?\s*|(?=\d))(?P<power>-?\d)(?:\s*\})?|\s+(?P<raised>squared|cubed))?"
)
FACTOR = re.compile(rf"[\s(]*(?P<per>/|\bper\b)?[\s(]*{_FACTOR}")
_ONE = re.sub(r"\?P<\w+>", "?:", _FACTOR)
UNIT = re.compile(
    rf"(?P<number>.*?[\d)}}])\s*(?P<units>{_ONE}(?:(?:\s*(?:/|\bper\b)[\s(]*|\s+){_ONE})*)[\s.)]*$",
    re.DOTALL,
)
_WORD = r"\{\s*\\(?:text|textrm|mathrm|rm)\s*\{\s*([A-Za-z]+)\s*\}\s*"
QUOTIENT = re.compile(rf"\\[dt]?frac\s*{_WORD}\}}\s*{_WORD}(\^\s*\{{?\s*\d\s*\}}?)?\s*\}}")
GAP = r"(?:\s|~|\\[,;:! ])"
_FONT = r"\\(?:text|textrm|mathrm|mathsf|rm)\s*\{"
_POWER = r"\s*\^\s*(?:\{\s*-?\d\s*\}|-?\d)"
_PIECE = (  # \mathrm{J\,K^{-1}}, \text{cm}^2, \mu\text{m}, \text{k}\Omega
    rf"(?:(?:\\mu{GAP}*)?{_FONT}(?![dei]\}})"
    rf"(?:[A-Za-z\s~/().-]|\\[,;:! ]|\\cdot(?![a-z])|{_POWER})*\}}"
    rf"|(?:(?<=\\[ ,;:!])|(?<=~)|(?<=[kM]\}}))\\Omega(?![a-zA-Z]))(?:{_POWER})?"
)
IN_TEXT = re.compile(
    rf"(?<=[\d)}}])(?:{GAP}|\\cdot(?![a-z])(?=\s*\\))*"
    rf"{_PIECE}(?:(?:{GAP}|\\cdot(?![a-z])|/)*{_PIECE})*"
)
_BETWEEN = re.compile(r"\\cdot(?![a-z])|\\[,;:! ]|[~\s]")
NOON = re.compile(r"(?i)\b([ap])\.?\s?m\b\.?")
COMMAND = re.compile(r"\\[A-Za-z]+")
POWERS = {"sq": 2, "cu": 3, "²": 2, "³": 3}
SIGNS = {r"\$": "dollar", "€": "euro", "£": "pound"}
# what sympy has under another name or not at all
NAMES = {"in": "inch", "sec": "second", "min": "minute", "hr": "hour", "lb": "pound"}
PREFIXED = re.compile(r"([kMGTmunpc])(Pa|J|W|V|A|N|Hz|C|F|T|eV|H|K|mol|bar|cal|ohm|erg|g|m|s|L|Wb)")
OTHERS = {
    name: Symbol(name) for name in ("cent", "dollar", "euro", "ante", "post", "erg", "cal", "ev")
}


def unit(answer: str) -> Expr | None:
    """The unit that ends the answer, or its base (`52_8`) or modulus (`3 \\pmod 7`) as a symbol.

    `15\\text{ cm}^2` is cm**2, `5 m/s` meter/second, `90^\\circ` degree, and `\\$5` dollar; None
    where there is none, or none that sympy.physics.units knows. A single letter is a unit only in
    an answer without other letters: `3 m`, but not `2s + 3m`.
    """
    if match := BASE.search(answer):
        return Symbol(f"base {int(match[2])}")
    if match := MODULUS.search(answer):
        return Symbol(f"modulus {int(match[1])}")
    match = UNIT.fullmatch(_plain(answer))
    if match is None:
        return None
    factors = [*FACTOR.finditer(match["units"])]
    if not is_unit(factors[0]["word"], match["number"]) and not TEXT.search(sloped(answer)):
        return None
    found = Integer(1)
    below = False
    for factor in factors:
        below = below or bool(factor["per"])
        named = _named(factor["word"]) or _prefixed(factor["word"])
        if named is None:
            return None
        raised = factor["area"] or factor["raised"]
        power = POWERS["cu" if raised.startswith("cu") else "sq"] if raised else factor["power"]
        found *= named ** (int(power or 1) * (-1 if below else 1))
    return found


def sloped(answer: str) -> str:
    """`answer` with its unit in one \\text: \\text{ m/s} for \\frac{\\text{m}}{\\text{s}}."""
    return IN_TEXT.sub(_in_one_text, QUOTIENT.sub(r"\\text{ \1/\2}\3", answer))


def _in_one_text(match: re.Match[str]) -> str:
    words = match[0].replace(r"\mu", "u").replace(r"\Omega", "ohm")
    words = re.sub(rf"{_FONT}|[{{}}]", "", _BETWEEN.sub(" ", words))
    return rf"\text{{ {' '.join(words.split())}}}"


def is_unit(word: str, number: str) -> bool:
    """Whether `word` is a unit behind `number`, and no variable."""
    letters = any(c.isalpha() for c in COMMAND.sub("", number))
    return _named(word) is not None and not (len(word) == 1 and letters)


def compound(answer: str) -> bool:
    """Whether a unit is followed by a number, as in `5\\text{ ft }6\\text{ in}`."""
    plain = _plain(answer)
    return any(unit(plain[: match.end()]) for match in re.finditer(r"[a-z]\b(?=\s+\d)", plain))


def _plain(answer: str) -> str:
    answer = SIGN.sub(lambda match: f"{match[2]} {SIGNS[match[1]]}", sloped(answer))
    answer = NOON.sub(lambda match: "ante" if match[1] in "aA" else "post", answer)
    for raised in "²³":
        answer = answer.replace(raised, f"^{POWERS[raised]}")
    plain = NOISE.sub(" ", TEXT.sub(r" \1 ", DEGREES.sub(" degree ", answer)))
    return re.sub(r"(?<=degree)\s+[CF]\b", "", plain)


def _prefixed(word: str) -> Expr | None:
    match = PREFIXED.fullmatch(word)
    named = _named(match[2]) if match else None
    return Symbol(match[1]) * named if match and named is not None else None


def _named(word: str) -> Expr | None:
    word = word if len(word) == 1 else word.lower()
    singular = word.removesuffix("s") or word
    if singular in OTHERS:
        return OTHERS[singular]
    for name in (word, singular, NAMES.get(singular, "")):
        found = getattr(sympy.physics.units, name, None) if name else None
        if isinstance(found, Quantity) and not isinstance(found, PhysicalConstant):
            return found
    return None
