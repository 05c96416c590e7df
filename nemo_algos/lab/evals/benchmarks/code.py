"""Problems whose answer is run: a Python program, or a query to a SQLite database.

HumanEval(+), MBPP(+) and APPS, whose rows are as codeparrot/apps has them, or the authors' folders,
one a problem; Spider and BIRD, whose databases are <databases>/<db_id>/<db_id>.sqlite.
"""

import ast
import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from keyword import iskeyword
from pathlib import Path
from typing import Any

from nemo_algos.engines.data.rows import Row
from nemo_algos.engines.execution.code import SCRIPT
from nemo_algos.lab.evals.problem import Options, Problem, info_of
from nemo_algos.untrusted import content, from_json

COMPLETE = (
    "Complete this Python function.\n\n```python\n{prompt}\n```\n\n"
    "Answer with one ```python block that holds the whole function and its imports."
)
WRITE = (
    "{task}\n\nYour code must pass these tests:\n\n```python\n{tests}\n```\n\n"
    "Answer with one ```python block that holds the whole solution and its imports."
)
SECONDS = 10.0  # for all of a program's answers; MBPP 123's own solution took 7 on two busy cores
PLUS_SECONDS = 25.0  # EvalPlus runs up to thousands of inputs
# HumanEval+ 32: the solution's result in the polynomial's place; `[[]]` passes, no zero does.
BROKEN_TEST = "_poly(*candidate(*inp), inp)"
MBPP_TEST = range(11, 511)  # of 974: 1..10 are for prompts, 511.. for training
READS = (
    "{question}\n\nYour program reads standard input and writes standard output.\n\n"
    "Answer with one ```python block that holds the whole program and its imports."
)
CALLED = (
    "{question}\n\nYour code is called as `{call}` and begins so:\n\n```python\n{start}\n```\n\n"
    "Answer with one ```python block that holds the whole solution and its imports."
)
APPS_SECONDS = 4.0  # for all tests; APPS' own limit for one of them
TYPING = "from typing import *\n"  # which the starter code of a class leaves out
FILES = {  # of a problem of APPS
    "question": "question.txt",
    "input_output": "input_output.json",
    "starter_code": "starter_code.py",
    "metadata": "metadata.json",
}
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
PROMPT = (
    "A SQLite database has these tables:\n\n```sql\n{schema}\n```\n\n{question}\n\n"
    "Answer with one SQLite query in a ```sql block."
)
# for one query; 30 is BIRD's own limit
SPIDER_SECONDS = 5.0
BIRD_SECONDS = 30.0
NAME = re.compile(r"(?!\.)[^/\0]{1,200}")
EVIDENCE = "{question}\n\nEvidence: {evidence}"


def humaneval(rows: list[Row], options: Options) -> Iterator[Problem]:
    """A problem for each row; its tests are the row's `test`, then check(entry_point)."""
    return (_humaneval(row, SECONDS) for row in rows)


def humaneval_plus(rows: list[Row], options: Options) -> Iterator[Problem]:
    """As the hub has it: the same with more in `test`, but for a task that no solution passes."""
    sound = [row for row in rows if BROKEN_TEST not in row.text("test")]
    options.counts["tasks with a broken test left out"] += len(rows) - len(sound)
    return (_humaneval(row, PLUS_SECONDS) for row in sound)


def _humaneval(row: Row, seconds: float) -> Problem:
    _refuse_release(row)
    start = row.text("prompt")
    name = row.text("entry_point")
    answer = _answer(start, name, f"{row.text('test')}\n\ncheck({name})\n", seconds)
    return Problem(row.text("task_id"), COMPLETE.format(prompt=start.rstrip()), answer)


def mbpp(rows: list[Row], options: Options) -> Iterator[Problem]:
    """The test split; the prompt shows test_list, which is run; the challenge tests are not."""
    inside = [r for r in rows if int(r.need("task_id")) in MBPP_TEST]
    counts = options.counts
    counts["rows outside the test split"] += len(rows) - len(inside)
    for row in inside:
        setup = str(row.get("test_setup_code") or "")
        tests = row.list("test_list")
        counts["problems with setup code"] += bool(setup)
        counts["problems with challenge tests, not run"] += bool(row.get("challenge_test_list"))
        counts["problems with \\r\\n in their tests"] += "\r\n" in "".join([setup, *tests])
        # setup code uses the classes of the solution, so it runs after it
        shown = "\n".join([*([setup] if setup else []), *tests]).replace("\r\n", "\n")
        prompt = WRITE.format(task=row.text("text", "prompt").strip(), tests=shown)
        answer = _answer("", _tested_function(row, options), shown + "\n")
        yield Problem(row.text("task_id"), prompt, answer)


def mbpp_plus(rows: list[Row], options: Options) -> Iterator[Problem]:
    """MBPP+ as the hub has it: the prompt shows test_list, the script `test` is run."""
    for row in rows:
        _refuse_release(row)
        shown = "\n".join([*(row.get("test_imports") or []), *row.list("test_list")])
        prompt = WRITE.format(task=row.text("prompt").strip(), tests=shown)
        answer = _answer("", _tested_function(row, options), row.text("test") + "\n", PLUS_SECONDS)
        yield Problem(row.text("task_id"), prompt, answer)


def _tested_function(row: Row, options: Options) -> str:
    """The function of the solution that test_list calls first; one is named as a builtin, `sum`."""
    try:
        solution = ast.parse(row.text("code"))
        tests = ast.parse("\n".join(row.list("test_list")))
    except SyntaxError as error:
        raise ValueError(
            f"{row.where}: its code or test_list is not valid Python: {error}"
        ) from None
    defined = set()
    for node in solution.body:
        if isinstance(node, ast.FunctionDef):
            defined.add(node.name)
    called = []
    for node in ast.walk(tests):
        name = node.func if isinstance(node, ast.Call) else None
        if isinstance(name, ast.Name) and name.id in defined:
            called.append(name)
    if not called:
        options.counts["problems whose tests call no function of their code"] += 1
        return ""
    return min(called, key=lambda call: (call.lineno, call.col_offset)).id


def _answer(prompt: str, entry_point: str, tests: str, seconds: float = SECONDS) -> str:
    parts = {"prompt": prompt, "entry_point": entry_point, "tests": tests, "seconds": seconds}
    return json.dumps(parts)


def _refuse_release(row: Row) -> None:
    if "plus_input" in row.values:
        raise ValueError(
            f"{row.where}: the EvalPlus release file has inputs without expected outputs "
            "(plus_input). Use the rows from the hub, which have both in `test`."
        )


def apps(rows: list[Row], options: Options) -> Iterator[Problem]:
    """`input_output` has the tests: calls where it names a function, else stdin and stdout."""
    for place, row in enumerate(rows):
        question = row.text("question").strip()
        start = str(row.get("starter_code") or "").rstrip()
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
    if not tests or tests.get("inputs") in ({}, []):
        return "", [], "problems without tests"
    own = Row(tests, f"{row.where}, input_output")
    name = str(own.get("fn_name") or "")
    if name and (not name.isidentifier() or iskeyword(name)):  # it becomes part of the tests
        raise ValueError(f"{own.where}: fn_name {name[:80]!r} is not a function name")
    inputs = own.list("inputs")
    outputs = own.list("outputs")
    if len(inputs) != len(outputs):
        return "", [], "problems with more inputs than outputs, or fewer,"
    return name, list(zip(inputs, outputs, strict=True)), ""


def _reads(question: str, cases: list[tuple[Any, Any]]) -> tuple[str, str]:
    """Prompt and answer of a program that reads stdin."""
    known = [(_lines(given), _lines(gold).split()) for given, gold in cases]
    return READS.format(question=question), _of_cases("", SCRIPT, known, WRITTEN)


def _called(question: str, start: str, name: str, cases: list[Any]) -> tuple[str, str]:
    """Prompt and answer of a function, or a method of `Solution`, that is called."""
    of_class = "class Solution" in start
    call = f"Solution().{name}" if of_class else name
    prompt = CALLED.format(question=question, call=call, start=start or f"def {name}(")
    entry, before = ("Solution", TYPING) if of_class else (name, "")
    return prompt, _of_cases(before, entry, cases, RETURNED.replace("CALL", call))


def _of_cases(prompt: str, entry_point: str, cases: list[Any], tests: str) -> str:
    tests = f"CASES = json.loads({json.dumps(cases)!r})\n{tests}"
    return _answer(prompt, entry_point, tests, APPS_SECONDS)


def _lines(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return str(value)


def folders(data: str) -> tuple[list[Row], str]:
    """The rows of the authors' folders, NUMBER/question.txt and so on, and "name sha256:..."."""
    digest = hashlib.sha256()
    rows = list[Row]()
    for folder in sorted(path.parent for path in Path(data).glob(f"*/{FILES['question']}")):
        there = {}
        for k, name in FILES.items():
            if (folder / name).exists():
                there[k] = folder / name
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


def spider(rows: list[Row], options: Options) -> Iterator[Problem]:
    """The gold is `query`. Rows count as often as they occur, in order if it has ORDER BY."""
    schemas = _schemas(rows, options)
    for place, row in enumerate(rows):
        query = row.text("query")
        question = row.text("question").strip()
        ordered = bool(re.search(r"\border\s+by\b", query, re.IGNORECASE))
        options.counts["queries with ORDER BY"] += ordered
        prompt = PROMPT.format(schema=schemas[row.text("db_id")], question=question)
        answer = _sql_answer(row, query, "ordered" if ordered else "bag", SPIDER_SECONDS, options)
        yield Problem(str(place), prompt, answer, info=info_of(row, "db_id"))


def bird(rows: list[Row], options: Options) -> Iterator[Problem]:
    """The gold is `SQL` or `sql`; evidence is shown. Rows are compared as sets."""
    schemas = _schemas(rows, options)
    for place, row in enumerate(rows):
        question = row.text("question").strip()
        evidence = str(row.get("evidence") or "").strip()
        options.counts["questions without evidence"] += not evidence
        if evidence:
            question = EVIDENCE.format(question=question, evidence=evidence)
        prompt = PROMPT.format(schema=schemas[row.text("db_id")], question=question)
        answer = _sql_answer(row, row.text("SQL", "sql"), "set", BIRD_SECONDS, options)
        name = options.id_of(row, place, "question_id")
        yield Problem(name, prompt, answer, info=info_of(row, "db_id", "difficulty"))


def _sql_answer(row: Row, query: str, rule: str, seconds: float, options: Options) -> str:
    path = str(_path(options.databases, row.text("db_id")).resolve())
    return json.dumps({"database": path, "query": query, "rule": rule, "seconds": seconds})


def _path(databases: str, name: str) -> Path:
    return Path(databases) / name / f"{name}.sqlite"


def _schemas(rows: list[Row], options: Options) -> dict[str, str]:
    """db_id -> its CREATE statements. Raises ValueError where any database is missing."""
    names = sorted({row.text("db_id") for row in rows})
    odd = [name for name in names if not NAME.fullmatch(name)]
    if odd:
        raise ValueError(
            f"the db_id {odd[0][:80]!r} must be a folder's name: at most 200 letters, and no /."
        )
    if not options.databases:
        raise ValueError(
            f"set `databases` to the folder of the {len(names)} SQLite files, "
            f"such as DATABASES/{names[0]}/{names[0]}.sqlite"
        )
    schemas = {name: _schema(_path(options.databases, name)) for name in names}
    missing = [name for name in names if not schemas[name]]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(names)} databases are missing in {options.databases}, or have "
            f"no table: {', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}. Put each at "
            f"{_path(options.databases, '<db_id>')}."
        )
    return schemas


def _schema(path: Path) -> str:
    """Its CREATE TABLE statements in the order of creation, empty where there is no such file."""
    if not path.is_file():
        return ""
    tables = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' "
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            statements = database.execute(tables + "ESCAPE '\\' ORDER BY rowid").fetchall()
    except sqlite3.Error as error:
        raise ValueError(f"{path} cannot be read as a SQLite database: {error}") from None
    return "\n\n".join(f"{statement.strip()};" for (statement,) in statements)
