"""The final answer in a response, as it was written; None where there is none.

Time is linear in the length of the response, whatever it holds.
"""

import re

GROUP = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)  # "\{" is no brace of LaTeX's
STYLE = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf)\b|\\[ ,;]|[{}$*\s]")

# "Answer: ", "**Answer**: (", "the answer is option ", "Final answer: $\text{" and the like
CUE = (
    r"(?i:\banswer)[*_]{0,2}(?:[ \t]{0,4}[:\uff1a]|[ \t]{1,4}is\b:?)[\s*_$(\[\"']{0,12}"
    r"(?:(?i:option|choice)[ \t]{1,4}\(?)?(?:\\(?:text|textbf|mathrm|mathbf)\{\(?)?"
)
# "the answer is A good idea" and "the answer is no more than 5" are running text
END = r"(?![\w'\u2019-])(?![ \t]+(?!(?:because|since|as|and|is)\b)[a-z])"
LETTER, WORD = re.compile(f"{CUE}([A-Z]){END}"), re.compile(f"{CUE}((?i:yes|no)){END}")
LETTER_LINE, WORD_LINE = re.compile(r"\(?([A-Z])\)?\.?"), re.compile(r"((?i:yes|no))\.?")
LETTER_BOX = re.compile(r"\(?([A-Za-z])(?:[.:)].*)?")  # "B", "(B)", "b. 42"


def boxed(text: str) -> str | None:
    """The content of the last balanced `\\boxed{...}`; of nested ones, the inner."""
    found = last_box(text)
    return found and text[found[0] : found[1]].partition("{")[2][:-1].strip()


def last_box(text: str) -> tuple[int, int] | None:
    """Where the last balanced `\\boxed{...}` starts and ends: text[start:end]."""
    opened: list[int] = []  # where each open box starts; -1 for other groups
    found = None
    for match in GROUP.finditer(text):
        token = match[0]
        if token == "{":
            opened.append(-1)
        elif token == "}":
            start = opened.pop() if opened else -1
            if start > (found or (-1,))[0]:
                found = start, match.end()
        elif token.startswith(r"\boxed"):
            opened.append(match.start())
    return found


def letter(text: str) -> str | None:
    """The option chosen, "A" to "Z".

    It stands in the last box (`\\boxed{B}`, `\\boxed{\\text{(b) 42}}`), after "answer:" or "answer
    is" (`**Answer:** B`, `The answer is option (B).`), or alone on the last line; the last of these
    counts. Outside a box it is a capital. Other letters in the text are no answer.
    """
    found = _last(text, LETTER, LETTER_LINE, LETTER_BOX)
    return found and found.upper()


def yes_no(text: str) -> str | None:
    """ "yes" or "no", from the same places as `letter`, in any case."""
    found = _last(text, WORD, WORD_LINE, WORD_LINE)
    return found and found.lower()


def _last(
    text: str, after_cue: re.Pattern[str], line: re.Pattern[str], box: re.Pattern[str]
) -> str | None:
    last_line = text.rstrip().rpartition("\n")[2]
    if match := line.fullmatch(STYLE.sub("", last_line)):
        return match[1]
    found = [(match.start(), match[1]) for match in after_cue.finditer(text)][-1:]
    place = last_box(text)
    if place and (match := box.fullmatch(STYLE.sub("", boxed(text) or ""))):
        found.append((place[0], match[1]))
    return max(found)[1] if found else None
