"""APPS: problems whose answer is a Python program, judged by its output or by calls of a function.

Rows as codeparrot/apps has them, or the authors' folders, one a problem.
"""

import hashlib
import json
from collections.abc import Iterator
from keyword import iskeyword
from pathlib import Path
from typing import Any

from nemo_algos.engines.data.rows import Row
from nemo_algos.lab.evals.benchmarks.source import Options, info_of
from nemo_algos.lab.evals.problem import Problem
from nemo_algos.lab.rewards.code import SCRIPT
from nemo_algos.untrusted import content, from_json

READS = (
    "{question}\n\nYour program reads standard input and writes standard output.\n\n"
    "Answer with one ```python block that holds the whole program and its imports."
)
CALLED = (
    "{question}\n\nYour code is called as `{call}` and begins so:\n\n```python\n{start}\n```\n\n"
    "Answer with one ```python block that holds the whole solution and its imports."
)
SECONDS = 4.0  # for all tests; APPS' own limit for one of them
TYPING = "from typing import *\n"  # which the starter code of a class leaves out
FILES = {"question": "question.txt", "input_output": "input_output.json"}
FILES |= {"starter_code": "starter_code.py", "metadata": "metadata.json"}

# The words of the output; numbers with a point as near as APPS' own check wants them (np.allclose).
WRITTEN = """
def same(word, gold):
    near = {"rel_tol": 1e-5, "abs_tol": 1e-8}
    return word == gold or "." in gold and math.isclose(float(word), float(gold), **near)

for given, gold in CASES:
    words = __main__(given).split()
    assert len(words) == len(gold) and all(map(same, words, gold))
"""
# JSON has neither tuples nor keys that are numbers; of some problems each result is in a list.
RETURNED = """
def plain(value):
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    return [*map(plain, value)] if isinstance(value, (list, tuple)) else value

for given, gold in CASES:
    found = plain(CALL(*given))
    assert gold in (found, [found])
"""


def apps(rows: list[Row], options: Options) -> Iterator[Problem]:
    """`input_output` has the tests: calls where it names a function, else stdin and stdout."""
    for place, row in enumerate(rows):
        question, start = row.text("question").strip(), str(row.get("starter_code") or "").rstrip()
        name, cases, fault = _tests(row)
        if fault:
            options.counts[f"{fault} left out"] += 1
            continue
        options.counts[f"problems judged by {'calls' if name else 'stdout'}"] += 1
        prompt, answer = _called(question, start, name, cases) if name else _reads(question, cases)
        own = options.id_of(row, place, "problem_id", "id")
        yield Problem(own, prompt, answer, info=info_of(row, "difficulty"))


def _tests(row: Row) -> tuple[str, list[tuple[Any, Any]], str]:
    """The function's name, each input with its output, and why there are none that can be run."""
    try:
        tests = json.loads(str(row.get("input_output") or "{}"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{row.where}: its input_output is not JSON: {error}") from None
    except ValueError:  # Python reads none of more
        return "", [], "problems with integers of over 4300 digits"
    if not isinstance(tests, dict):
        raise ValueError(f"{row.where}: its input_output must be an object with inputs, outputs")
    if tests.get("inputs", tests) in ({}, []):
        return "", [], "problems without tests"
    own = Row(tests, f"{row.where}, input_output")
    name = str(own.get("fn_name") or "")
    if name and (not name.isidentifier() or iskeyword(name)):  # it becomes part of the tests
        raise ValueError(f"{own.where}: fn_name {name[:80]!r} is not a function name")
    inputs, outputs = own.list("inputs"), own.list("outputs")
    if len(inputs) != len(outputs):
        return "", [], "problems with more inputs than outputs, or fewer,"
    return name, list(zip(inputs, outputs, strict=True)), ""


def _reads(question: str, cases: list[tuple[Any, Any]]) -> tuple[str, str]:
    known = [(_lines(given), _lines(gold).split()) for given, gold in cases]
    return READS.format(question=question), _answer("", SCRIPT, known, WRITTEN)


def _called(question: str, start: str, name: str, cases: list[Any]) -> tuple[str, str]:
    of_class = "class Solution" in start
    call = f"Solution().{name}" if of_class else name
    prompt = CALLED.format(question=question, call=call, start=start or f"def {name}(")
    entry, before = ("Solution", TYPING) if of_class else (name, "")
    return prompt, _answer(before, entry, cases, RETURNED.replace("CALL", call))


def _answer(prompt: str, entry_point: str, cases: list[Any], tests: str) -> str:
    tests = f"CASES = json.loads({json.dumps(cases)!r})\n{tests}"
    parts = {"prompt": prompt, "entry_point": entry_point, "tests": tests, "seconds": SECONDS}
    return json.dumps(parts)


def _lines(value: Any) -> str:
    """A text; some problems have a list of its lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def folders(data: str) -> tuple[list[Row], str]:
    """The rows of the authors' folders, NUMBER/question.txt and so on, and "name sha256:..."."""
    digest, rows = hashlib.sha256(), list[Row]()
    for folder in sorted(path.parent for path in Path(data).glob(f"*/{FILES['question']}")):
        there = {k: folder / name for k, name in FILES.items() if (folder / name).exists()}
        values: dict[str, Any] = {"id": folder.name}
        for key, path in there.items():
            found = content(path)
            digest.update(found)
            values[key] = found.decode(errors="replace")
        about = from_json(values.pop("metadata", "{}"), str(there.get("metadata")))
        rows.append(Row({**about, **values}, str(folder)))
    if not rows:
        raise ValueError(f"{data} does not contain a folder with a {FILES['question']}")
    return rows, f"{Path(data).name} sha256:{digest.hexdigest()}"
