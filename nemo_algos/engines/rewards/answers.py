"""The final answer in a response, as it was written; None where there is none.

Time is linear in the length of the response, whatever it holds.
"""

import re
import unicodedata
from itertools import islice
from typing import NamedTuple

BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
GROUP = re.compile(rf"{BOX.pattern}|\\.|[{{}}]", re.DOTALL)  # "\{" is no brace of LaTeX's
TAG = re.compile(r"<answer>\s*([^<>\s][^<>]{0,511})(?:</answer>|\Z)")
NAME = re.compile(r"([a-zA-Z](?:_\{?\w\}?)?)[\s$]*=[\s$]*$")
GAP = r"(?:[\s$~]|\\q?quad(?![a-z])|\\[,;:! ])*"
JOINT = re.compile(  # between boxes of one answer
    rf"{GAP}(?:[,;/|]|,?{GAP}(?:\\text\s*\{{\s*)?\(?"
    rf"(?:and(?: also)?|or[a-z, ]{{0,20}})(?:\s*\}})?)?{GAP}"
    rf"(?:[a-zA-Z](?:_\{{?\w\}}?)?[\s$]*=)?{GAP}"
)
# boxes of one answer, and characters between two of them
MOST_JOINED = 512
NEAR = 40
STYLE = re.compile(r"\\(?:text|math)[a-z]*|\\[ ,;()\[\]]|[{}$*_~`\"'\u2018\u2019\u201c\u201d]")

# "Answer: ", "**Answer**: (", "the correct option is ", "Final answer: $\text{", "<answer>" ...
CUE = (
    r"(?i:(?<!/)\banswer|\b(?:correct|right|best)[ \t]{1,4}(?:option|choice))[*_]{0,2}"
    r"(?:[ \t]{0,4}[:\uff1a]|[ \t]{1,4}is\b:?|>)[\s*_$(\[\"'`\u201c\u2018<\\]{0,12}"
    r"(?:(?i:option|choice)[ \t]{1,4}[*_$(]{0,4})?(?:\\?(?:text|math)[a-z]{0,4}\{\(?)?"
    r"|(?:(?:答案|选项)[ \t]?(?:[是为选]|:)|[故此以应]选:?)[\s*_$(\[\\]{0,12}"
    r"(?:\\?(?:text|math)[a-z]{0,4}\{\(?)?"
)
HAN = str.maketrans({"或": " or ", "和": " and ", "与": " and ", "、": ", ", "错": " is wrong"})
# "the answer is A good idea" and "the answer is no more than 5" are running text
END = (
    r"(?![\w-]|['\u2019]\w)"
    r"(?![ \t]{1,4}(?!(?:because|since|as|and|or|is|isn|it|they|there)\b)[a-z])"
)


def _undecided(other: str) -> str:
    """What takes a choice back: " or", " and B", ", B", ".B", " B", " (B)", " is wrong", "?"."""
    words = r"(?:(?:and|or|also|both|maybe|perhaps|possibly)\b[\W_]{0,8})"
    sign = r"[,;/&+|~\u2013\u2014-]|\.(?=\w)"
    joint = rf"[^\w,;/&+|~-]{{0,8}}(?:{sign}|(?={words}))[\W_]{{0,8}}{words}{{0,3}}"
    listed = rf"(?:\.?[ \t]+|[ \t]*\(){other}[).]*(?:[ \t]+{other}[).]*)*[ \t]*(?=\n|$|<)"
    taken_back = r"\W{1,8}(?:or|(?:is[ ](?:wrong|incorrect|false|not)|isn['\u2019]t))\b|\W{0,8}\?"
    return rf"(?P<undecided>{joint}{other}|{listed}|{taken_back})"


# "B) A cell" and "B, I think" are decided
MORE_LETTERS = _undecided(r"(?![AI][ ](?!and|or)[a-z])[A-Z](?![\w'\u2019-])")
ONE = (  # not a list: "A) 4, B) 5", nor "A) 4 or B", "A) 4?", "A) 4 is wrong"
    r"(?!\W*[A-Z]\)|.*\s\(?[A-Z]\)|.*\d\s+[A-Z]\.\s*\d|.*\bor\s+[A-Z]\W*$|.*\?\W*$"
    r"|.*\bis\s+(?:wrong|incorrect|false)\W*$)"
)
MORE_WORDS = _undecided(r"(?i:yes|no)(?!\w)")


class Places(NamedTuple):
    """How a choice is written behind a cue, in a box and as the last line."""

    cue: re.Pattern[str]
    box: re.Pattern[str]
    line: re.Pattern[str]


LETTERS = Places(
    re.compile(rf"(?:{CUE})(?P<choice>[A-Z]){END}{MORE_LETTERS}?"),
    re.compile(  # "B", "(B)", "b. 42", "Option B"
        rf"(?:(?i:option|choice|选项?)\s*)?\(?(?P<choice>[A-Za-z])(?:{MORE_LETTERS}.*|[.:)]{ONE}.*)?",
        re.DOTALL,
    ),
    re.compile(r"\(?(?P<choice>[A-Z])\)?\.?"),
)
WORDS = Places(
    re.compile(rf"(?:{CUE})(?P<choice>(?i:yes|no)){END}{MORE_WORDS}?"),
    re.compile(rf"(?P<choice>(?i:yes|no))(?:{MORE_WORDS}.*)?[.!]?", re.DOTALL),
    re.compile(r"(?P<choice>(?i:yes|no))[.!]?"),
)
OPTION = re.compile(rf"\(?(?P<choice>[A-Z])(?:{MORE_LETTERS}|[.)]\s{ONE}).*")  # "B) 42"


def boxed(text: str) -> str | None:
    """The content of the last balanced `\\boxed{...}`; of nested ones, the inner."""
    found = boxes(text)
    if not found:
        return None
    start, end = found[-1]
    return content(text, start, end)


def content(text: str, start: int, end: int) -> str:
    """What the box at text[start:end] holds."""
    return text[start:end].partition("{")[2][:-1].strip()


def boxes(text: str) -> list[tuple[int, int]]:
    """Where the balanced `\\boxed{...}` (`\\fbox`, `\\framebox`) start and end, by their starts."""
    opened: list[int] = []  # where each open box starts; -1 for other groups
    found = []
    for match in GROUP.finditer(text):
        if match[0] == "{":
            opened.append(-1)
        elif match[0] == "}":
            start = opened.pop() if opened else -1
            if start >= 0:
                found.append((start, match.end()))
        elif match[0].endswith("{") and len(match[0]) > 2:
            opened.append(match.start())
    return sorted(found)


def tagged(text: str) -> str:
    """`text` with boxes for its `<answer>...</answer>`, of which the last may be open."""
    return TAG.sub(r"\\boxed{\1}", text)


def joined(text: str, places: list[tuple[int, int]]) -> str:
    """The content of the last box and of those joined to it, as in x = [1] and y = [2]."""
    found = []
    following = 0
    for start, end in islice(reversed(places), MOST_JOINED):
        between = text[end:following]
        if found and not (end <= following <= end + NEAR and JOINT.fullmatch(between)):
            break
        name = NAME.search(text[max(0, start - NEAR) : start])
        found.append((content(text, start, end), name[1] if name else ""))
        following = start
    if len({box for box, _ in found}) == 1:
        return found[0][0]
    return ", ".join(f"{x}={box}" if x and "=" not in box else box for box, x in reversed(found))


def letter(text: str) -> str | None:
    """The option chosen, "A" to "Z".

    It stands in the last box (`\\boxed{B}`, `\\boxed{\\text{(b) 42}}`), in `<answer>B</answer>`,
    after "answer:", "answer is" or "correct option is" (`**Answer:** B`, `The answer is (B).`), or
    alone on the last line. The last of these counts; where it leaves the choice open ("A or B",
    "A, B", "B is wrong"), there is none. Where there is none of these, it is the option that starts
    the last line ("B) 42"), unless the line before starts with one too. Outside a box it is a
    capital. Other letters in the text are no answer.
    """
    text = _ascii_letters(text)
    return _choice(_last(text, LETTERS) or _option(text)).upper() or None


def yes_no(text: str) -> str | None:
    """ "yes" or "no", from the same places as `letter`, in any case."""
    return _choice(_last(_ascii_letters(text), WORDS)).lower() or None


def _ascii_letters(text: str) -> str:
    """Fullwidth letters as ASCII, Chinese conjunctions in English."""
    return tagged(unicodedata.normalize("NFKC", text).translate(HAN))


def _choice(match: re.Match[str] | None) -> str:
    return match["choice"] if match and not match.groupdict().get("undecided") else ""


def _last(text: str, places: Places) -> re.Match[str] | None:
    boxed_at = boxes(text)
    start, end = boxed_at[-1] if boxed_at else (-1, -1)
    line = text.rstrip().rfind("\n") + 1
    if not start < line < end:
        match = places.line.fullmatch(_bare(text[line:]))
        if match:
            return match
    last = None
    for match in places.cue.finditer(text):
        last = match
    if boxed_at:
        match = places.box.fullmatch(_bare(joined(text, boxed_at)))
        if match and (last is None or start > last.start()):
            return match
    return last


def _option(text: str) -> re.Match[str] | None:
    lines = [line for line in text.split("\n") if line.strip()][-2:]
    found = [OPTION.fullmatch(_bare(line)) for line in lines]
    return found[-1] if found and not any(found[:-1]) else None


def _bare(text: str) -> str:
    return STYLE.sub("", text).strip()
