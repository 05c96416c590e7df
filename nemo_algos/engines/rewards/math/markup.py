"""Markdown around a box says nothing: `**\\boxed{42}**` is `\\boxed{42}`, `2*\\boxed{21}` is not.

A text is read as a skeleton, a line at a time: a box, or a formula, is one character of it, so that
no star inside is taken for Markdown's, and what a star outside means is seen by its neighbours.
"""

import re

from nemo_algos.engines.rewards.answers import boxes

# characters read before the last box, and behind it
TAIL = 4096
AFTER = 512
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


def without_markup(text: str) -> str:
    """`text` without the Markdown around its last boxes; of JSON, without the doubled backslash."""
    if IN_JSON.search(text):
        text = text.replace("\\\\", "\\")
    places = boxes(text)
    if not places:
        return text
    start, end = places[-1]
    first = max(0, start - TAIL)
    last = end + AFTER
    if first:
        first = max(first, text.find("\n", first, start))  # a whole line, where there is one
    return text[:first] + _bared(text[first:last]) + text[last:]


def _bared(text: str) -> str:
    whole = _whole(text)
    pieces = [text[start:end] for start, end in whole]
    ends = [0, *(end for _, end in whole)]
    starts = [*(start for start, _ in whole), len(text)]
    between = (text[a:b] for a, b in zip(ends, starts, strict=True))
    skeleton = WHOLE.join(part.replace(WHOLE, " ") for part in between)
    for pattern in EMPHASIS:
        skeleton = pattern.sub(r"\2", skeleton)
    skeleton = ITEM.sub(r"\1", EDGES.sub(r"\1", skeleton))
    back = iter(pieces)
    return re.sub(WHOLE, lambda _: next(back), skeleton)


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
