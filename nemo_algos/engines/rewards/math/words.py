"""What a whole answer says in words: a number, yes or no, infinity, that nothing solves it."""

import re

from sympy import sympify

NUMERALS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
""".split()  # noqa: SIM905
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905
# what a word adds to "(0", so that "two thousand and five" is (0+2)*1000+(0+5)
TERMS = {
    **{word: f"+{number}" for number, word in enumerate(NUMERALS)},
    **{word: f"+{10 * tens}" for tens, word in enumerate(TENS, 2)},
    **{"a": "+1", "and": "", "hundred": "*100", "thousand": ")*1000+(0", "million": ")*10**6+(0"},
}
_BELOW_100 = (
    rf"(?:(?:{'|'.join(TENS)})(?:[\s-]+(?:{'|'.join(NUMERALS[1:10])}))?|{'|'.join(NUMERALS)})"
)
_BELOW_1000 = (
    rf"(?:(?:{'|'.join(NUMERALS[1:])}|a)[\s-]+hundred(?:\s+(?:and\s+)?{_BELOW_100})?"
    rf"|{_BELOW_100}|a(?=\s+(?:thousand|million)))\b"
)
_NUMBER = (
    rf"(?=[a-z])(?:{_BELOW_1000}\s+million\b(?:,?\s+(?:and\s+)?)?)?"
    rf"(?:{_BELOW_1000}\s+thousand\b(?:,?\s+(?:and\s+)?)?)?(?:{_BELOW_1000})?"
)
_END = r"[\s.!]*\}?[\s.]*$"
_NEGATED = r"\b(?:not?|cannot|[a-z]+n['\u2019]t|never|none|neither|impossible|false)\b"
_REST = (
    r"[\s,.;:(-]+(?![^{}]*\b(?:yes|wait|but|actually|however|or|maybe|perhaps|sorry|hmm+|unless"
    r"|except|if|only|right|correct|wrong|incorrect|true|answer|sometimes)\b)"
    rf"[^{{}}\\?.,;:]+\)?{_END}"
)


def _number(match: re.Match[str]) -> str:
    terms = [TERMS[word] for word in re.findall("[a-z]+", match["words"].lower())]
    return match["before"] + "-" * bool(match["minus"]) + str(sympify(f"(0{''.join(terms)})"))


# patterns and what they are replaced by, of a whole answer
WORDS = (
    (
        r"(?i)^(?P<before>\s*(?:[a-z]\s*=\s*)?-?)(?:\\text\s*\{)?\s*"
        rf"(?P<minus>(?:minus|negative)\s+)?(?P<words>{_NUMBER}){_END}",
        _number,
    ),
    (rf"(?i)^\s*(?:\\text\s*\{{)?\s*yes(?![^{{}}]*{_NEGATED}){_REST}", r"\\text{Yes}"),
    (
        rf"(?i)^\s*(?:\\text\s*\{{)?\s*no(?=[^{{}}]*{_NEGATED})(?![^{{}}]*{_NEGATED}[^{{}}]*{_NEGATED}){_REST}",
        r"\\text{No}",
    ),
    (r"(?i)\\text\s*\{\s*(?:-|negative\s|minus\s)\s*infinity\s*\}", r"-\\infty "),
    (r"(?i)\\text\s*\{\s*(?:\+|positive\s|plus\s)?\s*infinity\s*\}", r"\\infty "),
    (rf"(?i)^([-+]?)\s*infinity{_END}", r"\1\\infty "),
    (rf"(?i)^\s*(?:\\text\s*\{{)?\s*infinitely many(?: solutions)?{_END}", r"\\infty "),
    (
        rf"(?i)^\s*(?:\\text\s*\{{)?\s*no (?:real )?(?:solutions?|roots?)(?: exists?)?{_END}",
        r"\\emptyset ",
    ),
    (r"(?i)^(\\text\s*\{)\s*an?\s+(?=[a-z]{3})(?!(?:and|nor)\b)", r"\1"),
    (rf"(?i)^an?\s+(?=[a-z]{{5,}}{_END})", ""),
)
