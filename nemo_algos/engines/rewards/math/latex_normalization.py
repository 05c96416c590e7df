"""How an answer is spelled for math-verify, and what math-verify ignores of it.

Tables of patterns are run in their order; an answer's unit, number base and modulus are read here.
"""

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from math import gcd, lcm

import sympy.physics.units
from sympy import Expr, Integer, Symbol
from sympy.physics.units import Quantity
from sympy.physics.units.quantities import PhysicalConstant

from nemo_algos.engines.rewards.math.words import NUMERALS, WORDS

TEXT = re.compile(r"\\(?:text|textbf|textrm|mathrm|operatorname|mbox|rm)\s*\{([^{}]*)\}")
DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree|°")
SIGN = re.compile(r"(\\\$|€|£)\s*([\d.,{}]*\d)")
NOISE = re.compile(r"\\[,;!()\[\] ]|[$~*]")
BASE = re.compile(
    r"(?<![a-zA-Z])(?:\\left\s*)?\(?(\d+)(?:\\right\s*)?\)?_\s*\{?\s*(\d+)\s*\}?[\s.]*$"
)
GAP = r"(?:\s|~|\\[,;:! ])"
MODULUS = re.compile(
    rf"{GAP}*\(?{GAP}*\\?(?:(?:text|mathrm|operatorname)\s*\{{\s*)?[pb]?mod(?![a-z])\s*\}}?{GAP}*"
    r"\{?\s*(\d+)[}\s).]*$"
)
_FACTOR = (
    r"(?:(?P<area>sq(?:uare|\.)?|cu(?:bic|\.)?)\s+)?(?P<word>[A-Za-z]+)"
    r"(?:(?:\s*\^\s*\{?\s*|(?=\d))(?P<power>-?\d)(?:\s*\})?|\s+(?P<raised>squared|cubed))?"
)
FACTOR = re.compile(rf"[\s(]*(?P<per>/|\bper\b)?[\s(]*{_FACTOR}")
# _FACTOR without the names of its groups, so that UNIT may repeat it
_ONE = re.sub(r"\?P<\w+>", "?:", _FACTOR)
UNIT = re.compile(
    rf"(?P<number>.*?[\d)}}])\s*(?P<units>{_ONE}(?:(?:\s*(?:/|\bper\b)[\s(]*|\s+){_ONE})*)[\s.)]*$",
    re.DOTALL,
)
_WORD = r"\{\s*\\(?:text|textrm|mathrm|rm)\s*\{\s*([A-Za-z]+)\s*\}\s*"
QUOTIENT = re.compile(rf"\\[dt]?frac\s*{_WORD}\}}\s*{_WORD}(\^\s*\{{?\s*\d\s*\}}?)?\s*\}}")
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
NOON = re.compile(r"(?i)\b([ap])\.?\s?m\b\.?")  # a.m., p.m.: the units "ante" and "post"
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
    match = BASE.search(answer)
    if match:
        return Symbol(f"base {int(match[2])}")
    match = MODULUS.search(answer)
    if match:
        return Symbol(f"modulus {int(match[1])}")
    match = UNIT.fullmatch(_in_words(answer))
    if match is None:
        return None
    factors = [*FACTOR.finditer(match["units"])]
    marked = TEXT.search(unit_in_one_text(answer))
    if not marked and not is_unit(factors[0]["word"], match["number"]):
        return None
    found = Integer(1)
    below = False
    for factor in factors:
        below = below or bool(factor["per"])
        named = _named(factor["word"]) or _prefixed(factor["word"])
        if named is None:
            return None
        power = factor["power"]
        raised = factor["area"] or factor["raised"]
        if raised:
            power = POWERS["cu" if raised.startswith("cu") else "sq"]
        found *= named ** (int(power or 1) * (-1 if below else 1))
    return found


def unit_in_one_text(answer: str) -> str:
    """`answer` with its unit in one \\text: \\frac{\\text{m}}{\\text{s}} becomes \\text{ m/s}."""
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
    plain = _in_words(answer)
    return any(unit(plain[: match.end()]) for match in re.finditer(r"[a-z]\b(?=\s+\d)", plain))


def _in_words(answer: str) -> str:
    """The answer with its units as words: signs, degrees, \\text and raised digits written out."""
    answer = SIGN.sub(lambda match: f"{match[2]} {SIGNS[match[1]]}", unit_in_one_text(answer))
    answer = NOON.sub(lambda match: "ante" if match[1] in "aA" else "post", answer)
    for raised in "²³":
        answer = answer.replace(raised, f"^{POWERS[raised]}")
    plain = NOISE.sub(" ", TEXT.sub(r" \1 ", DEGREES.sub(" degree ", answer)))
    return re.sub(r"(?<=degree)\s+[CF]\b", "", plain)


def _prefixed(word: str) -> Expr | None:
    """`km` as k * meter, with k a symbol: a prefix is a part of the unit, and no factor of 1000."""
    match = PREFIXED.fullmatch(word)
    named = _named(match[2]) if match else None
    if match and named is not None:
        return Symbol(match[1]) * named
    return None


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


# ruff: noqa: RUF001


Spelling = str | Callable[[re.Match[str]], str]

SPACE = r"(?:\s|~|\\[,:;! ]|\\q?quad(?![a-z]))"
DOTS = r"(?:\.\.\.|\\[cl]?dots(?![a-z]))"
NUMBER = r"(?<![\d.])-?(?>\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)"
START = r"(?<![\d.,_^])"  # of a number that is no index, exponent or part of a longer one
SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
SCALES |= {"trillion": 10**12, "quadrillion": 10**15}
SCALES |= {"百": 100, "千": 10**3, "万": 10**4, "亿": 10**8}
SCALE_WORD = "|".join(SCALES)
HAN_OPEN = "不非错至到一二两三四五六七八九十零"  # not, wrong, to, and digits
HAN = rf"(?:(?![{HAN_OPEN}])[\u3400-\u9fff])"
UNICODE = str.maketrans(
    {"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div "}
    | {"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "π": r"\pi "}
    | {"∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "∈": r"\in "}
    | {"∨": " or ", "或": " or ", "和": " and ", "与": " and ", "、": ",", "。": ".", "度": "°"}
)
FUNCTION = re.compile(r"(?i)and|(?:arc)?(?:cos|sin|tan)|cot|csc|sec|exp|gcd|lcm|log|max|min|sqrt")


def _rules(*rules: tuple[str, Spelling]) -> list[tuple[re.Pattern[str], Spelling]]:
    return [(re.compile(pattern), spelling) for pattern, spelling in rules]


def _mixed(match: re.Match[str]) -> str:
    whole, over, under = map(int, match.groups())
    if over < under:
        return rf"\frac{{{whole * under + over}}}{{{under}}}"
    return match[0]


def _periodic(match: re.Match[str]) -> str:
    whole, fixed, *periods = match.groups()
    period = next(filter(None, periods))
    over = int(whole + fixed + period) - int(whole + fixed or "0")
    return rf"\frac{{{over}}}{{{'9' * len(period) + '0' * len(fixed)}}}"


def _remark(match: re.Match[str]) -> str:
    space, words = match.groups()
    first = re.split("[ /]", words)[0]
    is_word = bool(space) and len(first) > 2 and not FUNCTION.fullmatch(first)
    if is_word or is_unit(first, match.string[: match.start()]):
        return rf"\text{{ {words}}}"
    return match[0]


def _speed(match: re.Match[str]) -> str:
    if all(is_unit(word, "") for word in match.group(1, 2)):
        return rf"\text{{ {match[1]}/{match[2]}}}{match[3] or ''}"
    return match[0]


def _ratio(match: re.Match[str]) -> str:
    """3:4:5 for 6:8:10, which is no quotient, as a tuple that no point is."""
    terms = [Fraction(term.replace(",", "")) for term in match[0].split(":")]
    unit = Fraction(gcd(*(term.numerator for term in terms)) or 1)
    whole = lcm(*(term.denominator for term in terms))
    return rf"(\varrho, {', '.join(str(term * whole / unit) for term in terms)})"


CHARACTERS = _rules(
    ("[⁰¹²³⁴-⁹⁺⁻ⁿ]+", r"^{\g<0>}"),
    ("[₀-₉]+", r"_{\g<0>}"),
    ("[¼-¾⅐-⅞]", r" \g<0>"),  # the space, because NFKC would turn 2½ into 21/2
)
_DEEP = r"((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)"  # what stands in braces


def _unfonted(match: re.Match[str]) -> str:
    """What a font is put around, where that has no letters; in braces where it is an argument."""
    if re.search("[A-Za-z]", COMMAND.sub("", match[1])):
        return match[0]
    argument = re.search(r"[A-Za-z_^}]\s*$", match.string[: match.start()])
    if argument and re.fullmatch(r"[-+\d.]{2,}", match[1]):
        return f"{{{match[1]}}}"
    return match[1]


def _based(match: re.Match[str]) -> str:
    word = match[1].lower()
    return f"_{{{NUMERALS.index(word) if word in NUMERALS else word}}}"


# How an answer looks: fonts, colors and braces around it or around a part, another word for a base.
LOOKS = _rules(
    (rf"\{{{_DEEP}\\choose(?![a-z]){_DEEP}\}}", r"\\binom{\1}{\2}"),
    (r"^([^{}]*)\\choose(?![a-z])([^{}]*)$", r"\\binom{\1}{\2}"),
    (r"\\(?:text)?color\s*\{[^{}]*\}", ""),
    (r"\{\s*\\(?:bf|it|sl|em|bfseries|itshape|boldmath)(?![a-zA-Z])\s*", r"\\mathbf{"),
    (r"\{\s*\\(?:rm|sf|tt|sc)(?![a-zA-Z])\s*", r"\\mathrm{"),
    (r"\\(?:bf|it|sl|em|bfseries|itshape|boldmath)(?![a-zA-Z])\s*(?=\{)", r"\\mathbf"),
    (r"\\(?:rm|sf|tt|sc)(?![a-zA-Z])\s*(?=\{)", r"\\mathrm"),
    (r"\\(?:bf|it|sl|em|bfseries|itshape|boldmath|rm|sf|tt|sc)(?![a-zA-Z])\s*", " "),
    (r"\\(?:[hv]space\*?|h?phantom|vphantom)\s*\{[^{}]*\}|\\(?:math)?strut(?![a-z])", ""),
    (r"\\space(?![a-z])", " "),
    (r"(?<=[\d}])\s*\\math(?:bf|it|sf|tt)\s*(?=\{[A-Za-z]{2,}\})", r"\\text"),
    (r"\\math(?:bf|rm|sf|tt|it)(?:\s*(?=[-+\d(\[\\])|\s+(?=[a-z]))", ""),
    (r"\\(?:text(?:bf|it|sf|sl|sc|tt|up|md|normal)|emph|[mh]box)\s*(?=\{)", r"\\text"),
    *3  # a font in a font
    * (
        (
            r"\\(?:text(?:rm)?|math(?:rm|bf|sf|tt|it|normal|op|bin|rel|ord)|bold(?:symbol)?|bm|pmb"
            rf"|underline|ensuremath|operatorname)\s*\{{{_DEEP}\}}",
            _unfonted,
        ),
    ),
    (r"\\(?:math(?:sf|tt|it|normal|ord)|bold|pmb|ensuremath)\s*(?=\{)", r"\\mathbf"),
    (r"(?<![A-Za-z}^_*])\{\s*\}", ""),
    (r"(?<=\d)\{\.\}(?=\d)", "."),
    (r"(?<![\^_])\{\s*([-+\u2212\u2013])\s*\}", r"\1"),
    (r"(^|[-+=(,\[:<>]\s*)\{([-+]?[\d.,]+)\}", r"\1\2"),
    *2  # around the whole
    * (
        (
            rf"^\s*(?:\\(?:mathbf|boldsymbol|bm|underline|math(?:op|bin|rel|rm)))?\s*\{{{_DEEP}\}}\s*$",
            r"\1",
        ),
    ),
    (r"^\s*\\left\s*\.(.*)\\right\s*\.\s*$", r"\1"),
    (r"\\lparen(?![a-z])", "("),
    (r"\\rparen(?![a-z])", ")"),
    (r"\\lbrack(?![a-z])", "["),
    (r"\\rbrack(?![a-z])", "]"),
    (r"\\colon(?![a-z])", ":"),
    (r"\^\s*\{?\s*\\(?:(?:text|mathrm)\s*\{\s*o\s*\}|deg(?![a-z]))(?:\s*\})?", r"^\\circ"),
    (r"^\(-\)(?=\d)", "-"),
    (r"\\(?:sfrac|nicefrac)(?![a-z])", r"\\frac"),
    (r"(?:\{\s*\})?\^\s*\{?(\d+)\}?(?:\\!)*/(?:\\!)*_\s*\{?(\d+)\}?", r"\\frac{\1}{\2}"),
    (r"\\overline\s*\{(\d+)\}(?=\s*_)", r"\1"),
    (r"(?i)\\text\s*\{(\d+)([\s(]+(?:in )?base[^{}]*)\}", r"\1\\text{\2}"),
    (
        r"(?i)(?<=[\d)}])(?:\s*_\s*\{?\s*(?:\\(?:text|mathrm|textrm)\s*\{)?\s*\(?\s*(?:base)?"
        r"|(?:\s|\\[,;: ])*\(?\\(?:text|mathrm|textrm)\s*\{\s*\(?\s*(?:in\s+)?base)(?:\s*\})?[-\s]*"
        rf"({'|'.join(NUMERALS)}|\d+)[\s)}}.]*$",
        _based,
    ),
)
SPELLINGS = _rules(
    # Python's functions
    (r"(?<![a-z\\])(?:np|numpy|math)\.sqrt\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"(?<![a-z\\])(?:np|numpy|math)\.a(?:rc)?(sin|cos|tan)(?![a-z0-9])", r"\\arc\1"),
    (r"(?<![a-z\\])(?:np|numpy|math)\.log(?![a-z0-9])", r"\\ln"),
    (r"(?<![a-z\\])(?:np|numpy|math)\.(sin|cos|tan|exp|pi|sinh|cosh|tanh)(?![a-z0-9])", r"\\\1 "),
    # what says nothing
    (r"(?<![\w)])\*\*|\*\*(?![\w(])", ""),
    (r"\\[bB]igg?[lrm]?(?![a-zA-Z])", ""),
    (r"\\(?:displaystyle|[lL]arge|LARGE|[hH]uge|small)(?![a-zA-Z])", ""),
    (r"\\(?:checkmark|(?:black)?square|qed)(?![a-zA-Z])|\\tag\*?\s*\{\s*\}", ""),
    (r"\\(?:boldsymbol|bm|mathbf|underline)\s*(?=\{)", ""),
    (rf"{NUMBER}(?:\s*:\s*{NUMBER}){{2,}}", _ratio),
    # words
    (r"\\text\{ [A-Za-z][^{}]*\}", lambda match: re.sub(r"\^-?\d", "", match[0])),
    (r"\\(?:text|mathrm)\s*\{([ie])\}", r"\1"),
    (r"\\(?:mbox|text(?:bf|it|rm)|mathrm(?!\s*\{[Td]\}))\s*(?=\{)", r"\\text"),
    (r"(?<=\d)\s*\\operatorname\s*(?=\{)", r"\\text"),
    (r"(\\text\s*\{[^{}]*)\^\{(\d)\}\}", r"\1}^\2"),  # \text{cm²}
    (r"\\text\s*\{[\s,]*(and|or)[\s,]*\}", r" \1 "),
    (r"\\(?:lor|vee)(?![a-z])", " or "),
    (r"\\text\s*\{\s*(?:is|are|equals|is equal to)\s*\}", "="),
    (r"(?:\\text\s*\{\s*)?\b[Aa]ll real(?:s| numbers)\s*\}?", r"\\mathbb{R}"),
    (r"\\text\s*\{([^{}]*(?<![A-Za-z^])\d[^{}]*)\}", r"\1"),
    (rf"((?:\\\$|[€£])\s*{NUMBER})\s*(?:\\text\s*\{{\s*)?[kK](?![a-z])\s*\}}?", r"\1*1000"),
    (r"\\\$|[€£]|(?<=\d)\s+(?:dollar|euro)s?\b", ""),  # read as products of letters
    # numbers
    (r"\*\*", "^"),
    (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
    (r"(?<=[\d})])\s*(?=\\[dt]?binom(?![a-z]))", r"\\cdot "),
    (r"(\d)[eE]\+?(-?\d+)", r"\1 \\times 10^{\2}"),  # math-verify reads 4e33 as 4 * e * 33
    (r"\{,\}|,\s*\\!\s*(?=\d{3})", ","),
    (rf"{START}\d{{1,3}}(?:{SPACE}+\d{{3}})+(?!\d)", lambda match: re.sub(SPACE, "", match[0])),
    (r"(?<!\d)(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?(\d+)\}?", _periodic),
    (rf"(?<!\d)(\d*)\.(\d{{0,9}}?)(?:(\d)\3\3+|(\d{{2,9}}?)\4+){DOTS}", _periodic),
    (r"(?<!\d)(\d+)\u2044(\d+)", r"\\frac{\1}{\2}"),
    (rf"{START}(\d+){SPACE}+(\d+)/(\d+)(?![\d.])", r"\1\\frac{\2}{\3}"),
    (r"(\\[cdt]?frac)\s*(\d)\s*(\d)", r"\1{\2}{\3}"),
    (r"(\\[cdt]?frac)\s*(\\[a-zA-Z]+)(?![a-zA-Z{])", r"\1{\2}"),  # \frac\pi2
    (rf"{START}(\d+){SPACE}*\\[cdt]?frac\s*\{{(\d+)\}}\s*\{{(\d+)\}}", _mixed),
    (
        rf"(?i)(?<=[\d}}])((?:{SPACE}|\$)*(?:\\text\s*\{{\s*)?)({SCALE_WORD})s?(?![a-z米克瓦])",
        lambda match: f"*{SCALES[match[2].lower()]}{match[1]}",
    ),
    (r"(?<=\d)\s*\^\s*\{\s*(?:\\text\s*\{\s*)?(?:st|nd|rd|th)\s*\}+", ""),
    (rf"(?<!\s){SPACE}+(?=\\?%)", ""),
    (r"(?<=[})])\\%", r"\\cdot 1\\%"),
    (rf"((?:{START}\d+|\(-?\d+\)))\s*(?=\(-?\d+\))", r"\1\\cdot "),  # 3(4), to math-verify 7
    (r"√\s*(\d+|[a-z]|\([^()]*\)|\{[^{}]*\})", r"\\sqrt{\1}"),
    (r"∛\s*(\d+|[a-z]|\([^()]*\)|\{[^{}]*\})", r"\\sqrt[3]{\1}"),
    (r"(\\sqrt\s*\[[^][]*\])\s*(\d)", r"\1{\2}"),
    # angles, sets, intervals
    (r"\^?\s*(?:°C?|\\degree(?![a-z]))|(?<=\d)\^\s*(?:o(?![a-z])|\{\s*o\s*\})", r"^\\circ"),
    (r"(\\(?:sin|cos|tan|cot)\s*[({]?\s*)([\d.]+)\s*\^\s*\{?\s*\\circ\s*\}?", r"\1(\2\\pi/180)"),
    (r"\\lbrace(?![a-z])", r"\\{"),
    (r"\\rbrace(?![a-z])", r"\\}"),
    (r"\\varnothing|\\\{\s*\\\}|\\text\s*\{\s*(?:[Tt]he )?[Ee]mpty set\s*\}", r"\\emptyset"),
    (r"\\langle", "("),
    (r"\\rangle", ")"),
    (
        r"(?:\\left\s*)?\\\{\s*[a-z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\\mid|:|\|)"
        r"((?:(?!\\[{}]|\\right).)*)(?:\\right\s*)?\\\}",  # {x | x < 2}
        r"\1",
    ),
    (r"(?<![\w}\])\\])\](?=[^][]*,)", "("),  # ]1, 2[
    (r"(?<=\d)\[$", ")"),
    (r"\\\\\s*\[[^][]*\]", r"\\\\"),  # \\[4pt]
)
OTHER = r"""
less more greater smaller larger lower higher fewer than over under below above up between at
bounds? twice doubled? tripled? half squared cubed root log(?:arithm)? minus plus negative times
factorial reciprocal without but except not [a-z]+n't no(?!\.) never if unless either or false wrong
incorrect
"""
OF = rf"\b(?:{'|'.join(OTHER.split())})\b"
LEAD = "so|the|final|answer|value|result|total|there|is|are|it|equals|about|exactly"
FOR_ALL = (
    r"(?:\\text\s*\{\s*for (?:all|any|every)[a-z ]*\}|\\forall(?![a-z]))\s*"
    r"[a-z](?:\s*\\in\s*\\mathbb\s*\{?[A-Z]\}?)?$"
)
ENVIRONMENT = (  # around one answer; others are matrices, or undecided
    r"\s*\\begin\s*\{(aligned|align\*?|gathered|gather\*?|split|equation\*?|array|center)\}"
    r"(?:\s*\{[clr|\s]*\})?(.*)\\end\s*\{\1\}[\s.]*"
)
NAMED_LINE = r"\s*([a-zA-Z](?:_\{?\w\}?)?)\s*="


def _unwrapped(match: re.Match[str]) -> str:
    """The content of an environment: one line, a chain of equations, or one of each name."""
    if r"\begin" in match[2]:
        return match[2]
    if match[1] == "array" and "&" in match[2]:
        return match[0]
    lines = [line for line in re.split(r"\\\\", match[2]) if line.strip()]
    lines = [re.sub(r"(?<!\\)&", "", line) for line in lines]
    if all(line.lstrip().startswith("=") for line in lines[1:]):
        return " ".join(lines)
    names = [re.match(NAMED_LINE, line) for line in lines]
    if len({name[1] for name in names if name}) == len(lines):
        return ", ".join(lines)
    return match[0]


# Of a whole answer: what stands at its ends.
EDGES = _rules(
    (rf"(?s)^{ENVIRONMENT}$", _unwrapped),
    (rf"^(?:(?!{DOTS})[^=,;])*{DOTS}[^=,;]*=(?!.*{DOTS})", ""),  # 1+2+\\cdots+n = n(n+1)/2
    (r"\\\(|\\\)|\$", ""),
    (r"(?i)(?:\\text\s*\{)?\s*(?<![a-z])(?:percent(?:age)?|pct)(?![a-z])\s*\}?", r"\\%"),
    (rf"^\s*(?:\\text\s*\{{)?\s*\(?[A-H](?:\)|\.\s){SPACE}*(?:\}}|(?=\d))(?=.)", ""),  # (B) 42
    (r"(?i)^\\text\s*\{\s*(?:negative|minus)\s*\}\s*(?=[\d\\])", "-"),
    (
        rf"(?i)^\\text\s*\{{(?![^{{}}]*{OF})[^{{}}\d<>]*"
        r"(?:(?:[=:]|\b(?:is|are|equals|hence|thus|therefore|takes?|gives?|gets?|has|have|point|pair"
        r"|triple|vector|interval|set|solutions?|numbers?|values?|totals?(?: of)?),?)\s*\}"
        r"|\}\s*[:=])",
        "",
    ),
    (rf"^[a-zA-Z](?:\s*:\s*[a-zA-Z])*\s*[:=]{SPACE}*(?=-?\d+{SPACE}*(?::|$))", ""),
    (rf"(?i)^\s*(?:\\text\s*\{{)?\s*(?:(?:{LEAD})\b(?!\}}?\s*[_^])[\s:]*)+\}}?", ""),
    *WORDS,
    (r"(\\text\s*\{[^{}]*?)[.,;]\s*\}$", r"\1}"),
    (r"^(?:\s|=|:|\\(?:approx|to|implies|therefore|[Rr]ightarrow)(?![a-z]))+", ""),
    (r"^[A-Z]\s*(?=\([^()]*,[^()]*\)$)", ""),  # P(1, 2)
    (r"^(?:[a-zA-Z]|\\[a-z]+)\s*\\in(?![a-z])\s*", ""),  # x \in (1, 2)
    (r"^[a-zA-Z](?:_\{?\w+\}?)?\s*\\approx(?![a-z])\s*", ""),
    (r"(?<==)\s*-?\d{1,3}(?:,\d{3})+$", lambda match: match[0].replace(",", "")),
    (rf"^{HAN}+|(?:{HAN}|/)+$", ""),
    (r"(?<=[\d)}])(\s*)([A-Za-z]{2,}(?:[ /][A-Za-z]+)*)(?=\s*(?:$|[,;=^]|or\b))", _remark),
    (r"(?<=\d)\s+([A-Za-z]+)\s*/\s*([A-Za-z]+)(\^\{?\d\}?)?(?=\s*$)", _speed),
    (FOR_ALL, ""),
    (rf"^{SPACE}+|(?:{SPACE}|(?<!\.\.)[.,;]|\\)+$", ""),
)
OTHER_THAN = "(?:is|was|are)n't|not|rather than|instead of|at (?:least|most)|(?:less|more) than"
# Of a text without a box: a list of numbers is one answer, and the 5 of "not 5" is none.
PROSE = _rules(
    (rf"(?m)((?:^|\bis|\bare|[:=])[\s*#]*)({NUMBER}(?:,\s+{NUMBER})+)(?=[\s.*]*$)", r"\1\\(\2\\)"),
    (r"(?i:answer)", ""),  # math-verify would prefer what follows this word to the last number
    (rf"(?i)[,;(]?\s?(?:(?:and|but)\s+)?(?:{OTHER_THAN}|不是|而非)\s*\$?{NUMBER}\)?", ""),
    (rf"({NUMBER}(?:,\s*{NUMBER})*),?\s+(?:or|and|to)\s+({NUMBER})", r" \\(\1, \2\\) "),
    (rf"({NUMBER}(?:,\s+{NUMBER}){{2,}})", r" \\(\1\\) "),
    (r"[\u3400-\u9fff]+\s*:?", " "),
)
# What is said in words behind a number. Math-verify drops it with all that follows, or multiplies.
REMARK = re.compile(
    rf"(?<=[\w)}}!%])(?:{SPACE}*\\text\s*\{{[^{{}}]*\}})+(?:\s*\^\s*\{{?\s*-?\d\s*\}}?)?"
    r"(?=\s*(?:$|[,;=)]|\\\}| or | and ))"
)
# Words behind a number that take it back, add to it or multiply it.
OPEN_WORDS = r"""
or xor oder vs if unless except else otherwise maybe too perhaps possibly probably alternatively
not [a-z]+n't cannot wrong incorrect false fails? rejected excluded least most bounds? exceeds?
plus minus squared cubed doubled tripled factorial (?-i:k) k(?=\s+(?!per)[a-z]{2}) lakhs? crores?
[a-z]+illions? gross score pairs? couple half halves thirds fourths quarters [a-z]+[fnx]ths
(?:seven|eigh|hundred|thousand)ths
two three four five six seven eight nine ten eleven twelve [a-z]+teen
twenty thirty forty fifty sixty seventy eighty ninety
"""
UNDECIDED = [
    re.compile(pattern)
    for pattern in (
        r"^\s*(?:\\(?:neq?|not|neg|[lg]eq?|[lg]eqslant|[lg]t)(?![a-zA-Z])|!=|[<>])",
        rf"(?i)\\text\s*\{{[^{{}}]*(?<![a-z])(?:{'|'.join(OPEN_WORDS.split())})(?![a-z])",
        rf"(?<![\d.^_])\d[\d.]*{SPACE}+\d",  # 12 13
        DOTS,
        r":[^:]*:",
        r"\\begin\s*\{cases|^(?!.*\\begin).*\\\\|=.*\n.*=",
        # x=17 \\quad x=18
        r"(?<![\w\\^])([a-zA-Z](?:_\{?\w\}?)?)\s*=(?:(?! or | and )[^=,;])*(?<![a-zA-Z\\])\1\s*=",
        rf"[{HAN_OPEN}?]|\d\s*'",
    )
]


def characters(text: str) -> str:
    """`text` with LaTeX for the signs of Unicode that have one, and ASCII digits."""
    text = unicodedata.normalize("NFKC", _apply(CHARACTERS, text))
    return _apply(LOOKS, text.translate(UNICODE))


def spell(text: str) -> str:
    """`text`, an answer or what holds one, with numbers and words as math-verify reads them."""
    return _apply(SPELLINGS, unit_in_one_text(text))


def prose(text: str) -> str:
    """`text` changed so that its last number is the answer that it gives."""
    return _apply(PROSE, spell(text))


def trimmed(answer: str) -> str:
    """`answer` without what surrounds it; a bare word behind a number is in \\text."""
    return _apply(EDGES, answer)


def undecided(answer: str, gold: str) -> bool:
    """Whether `answer` leaves open what it says, in a way that `gold` does not."""
    return any(rule.search(answer) and not rule.search(gold) for rule in UNDECIDED)


# Left of "=": one value (a sum, f(2), AB), or what is no part of an expression.
_VALUE = re.compile(r"\\(?:lim|sum|int|prod|max|min|sup|inf|pi)(?![a-z])|(?<![\\a-zA-Z])[A-Z]")
_IGNORED = re.compile(r"_(?:\w|\{(?:[^{}]|\{[^{}]*\})*\})|\\text\s*\{[^{}]*\}|[',:]")
_CALL = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]\([^()]*\)")
_FUNCTION = re.compile(r"\\?(?:sqrt|log|l[ng]|exp|(?:arc)?(?:sin|cos|tan)|cot|sec|csc)(?![a-df-z])")
_OPERATION = re.compile(r"\\[lr](?:floor|ceil|vert)|\\(?:vert|frac)|\||[-+^!/]")


def unsolved(answer: str) -> bool:
    """Whether `answer` is an equation for something else than its unknown: |x| = 27, x^2 = 27.

    `2x = 14`, `m+n = 14` and `f(3) = 14` may be what the problem asks for.
    """
    side, *right = re.split(r"(?<![<>!])=", answer, maxsplit=1)
    if not right or re.search(rf"(?i){OF}", side):
        return bool(right)
    left = _CALL.sub("n", _CALL.sub("n", _IGNORED.sub("", answer))).partition("=")[0]
    unknowns = {*re.findall("[a-df-hj-z]", COMMAND.sub("", _FUNCTION.sub("", left)))}
    if _VALUE.search(left) or not unknowns:
        return False
    changed = _FUNCTION.search(left) or _OPERATION.search(left)
    return bool(re.search(r"\||[vV]ert(?![a-z])", left) or (changed and len(unknowns) == 1))


def without_remarks(answer: str) -> str:
    """`answer` without units and what else is said in words behind a number."""
    return REMARK.sub("", answer)


def _apply(rules: list[tuple[re.Pattern[str], Spelling]], text: str) -> str:
    for pattern, spelling in rules:
        text = pattern.sub(spelling, text)
    return text
