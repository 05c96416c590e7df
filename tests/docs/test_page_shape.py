"""A page's prose is at most 100 columns wide, and its table cells are short."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = ("study/", "base_configs.md", "messages.md", "papers/", "methods/zoo.md")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(
    r"^[ \t]*```.*?^[ \t]*```[ \t]*$|^\$\$$.*?^\$\$$|^<!-- [a-z: ]+ -->$.*?^<!-- end -->$",
    re.MULTILINE | re.DOTALL,
)
WHOLE = re.compile(r"\]\([^)]*\)|\$[^$]*\$|`[^`]*`|^\s*[|#<]|^!\[")  # cannot be broken, or a table
WIDTH, WORDS = 100, 15


def prose(text):
    """Lines outside code, formulas and generated tables."""
    return CODE.sub(lambda m: "\n" * m[0].count("\n"), text).splitlines()


def wide(text):
    """Lines that could have been broken before column 100."""
    for number, line in enumerate(prose(text), 1):
        if len(line) > WIDTH and not WHOLE.search(line[WIDTH:]) and not WHOLE.match(line):
            last = WHOLE.sub(lambda m: "x" * len(m[0]), line).rfind(" ", 4, WIDTH + 1)
            if last > 4:
                yield number


def long_cells(text):
    """Lines with a cell of too many words; a list of names is none."""
    for number, line in enumerate(prose(text), 1):
        for cell in line.split("|") if line.startswith("|") else ():
            plain = re.sub(r"`[^`]*`", "x", re.sub(r"\]\([^)]*\)", "]", cell))
            names = all(len(part.split()) == 1 for part in plain.split(","))
            if len(re.findall(r"[A-Za-z][\w'-]*", plain)) > WORDS and not names:
                yield number


def test_both_are_seen():
    assert [*wide("x " * 50 + "end")] == [1] and not [*wide("x " * 49 + "e")]
    assert not [*wide("```\n" + "x " * 60 + "\n```")] and not [*wide("| " + "x " * 60)]
    assert [*long_cells("| a | " + "word " * 16 + "|")] == [1]
    assert not [*long_cells("| " + "word " * 15 + "| b |")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_is_no_wall(page):
    text = page.read_text()
    if any(name in str(page) for name in GENERATED):
        return
    assert not [*wide(text)] and not [*long_cells(text)]
