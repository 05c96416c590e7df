"""No test holds a message of the product to its wording: it asks for a key and words (says.py)."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUN = 5  # consecutive words that a literal may not share with a message
WORD = re.compile(r"[A-Za-z][a-z]*(?:['-][A-Za-z]+)*")
ALLOWED = {  # where the text itself is what is tested
    "lab/evals/test_benchmarks_math.py": "prompts of models, notes stored with results",
    "lab/evals/test_benchmarks_tasks.py": "the same",
    "lab/mismatch/test_dump.py": "a line of code that the message offers",
    "lab/rewards/test_hostile_code.py": "a program",
}


def literals(path):
    """The texts of a file, but for its docstrings; of an f-string with \\0 for its values."""
    tree = ast.parse(path.read_text())
    parts = {id(p) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for p in n.values}
    parts |= {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(getattr(p, "value", 0) if _text(p) else " \0 " for p in node.values)
        elif _text(node) and id(node) not in parts:
            yield node.value


def _text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def runs(text):
    """Each five words in a row; a number, a key or a quoted name ends a row."""
    row = []
    for token in [*text.split(), ""]:
        word = token.strip("\"',.;:!?()[]\\^$`")
        if WORD.fullmatch(word):
            row.append(word.lower())
            continue
        yield from (tuple(row[i : i + RUN]) for i in range(len(row) - RUN + 1))
        row = []


@pytest.fixture(scope="module")
def messages():
    texts = (text for path in (ROOT / "nemo_algos").rglob("*.py") for text in literals(path))
    return {run for text in texts for run in runs(text)}


def pinned(path, messages):
    return [text for text in literals(path) if any(run in messages for run in runs(text))]


def test_no_sentence_of_the_product_stands_in_a_test(messages):
    assert len(messages) > 1000
    found = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        name = path.relative_to(ROOT / "tests").as_posix()
        if name not in ALLOWED:
            found[name] = pinned(path, messages)
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_what_is_allowed_is_needed(messages):
    assert all(pinned(ROOT / "tests" / name, messages) for name in ALLOWED)


def test_a_sentence_is_seen(tmp_path):
    path, fox = tmp_path / "a.py", {("quick", "foxes", "jump", "over", "dogs")}
    path.write_text("def f(x):\n    '''quick foxes jump over dogs'''\n    assert x\n")
    assert pinned(path, fox) == []
    path.write_text("assert f'{x}: quick foxes jump over dogs' in y, 'quick foxes jump over 2'")
    assert len(pinned(path, fox)) == 1
