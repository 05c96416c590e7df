"""Problems whose answer is a Python function: HumanEval(+) and MBPP(+)."""

import ast
import json
from collections.abc import Iterator

from nemo_algos.engines.data.rows import Row
from nemo_algos.lab.evals.benchmarks.source import Options
from nemo_algos.lab.evals.problem import Problem

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


def humaneval(rows: list[Row], options: Options) -> Iterator[Problem]:
    """`test` defines check(candidate)."""
    return (_humaneval(row, SECONDS) for row in rows)


def humaneval_plus(rows: list[Row], options: Options) -> Iterator[Problem]:
    """As the hub has it: the same with more in `test`, but for a task that no solution passes."""
    sound = [row for row in rows if BROKEN_TEST not in row.text("test")]
    options.counts["tasks with a broken test left out"] += len(rows) - len(sound)
    return (_humaneval(row, PLUS_SECONDS) for row in sound)


def _humaneval(row: Row, seconds: float) -> Problem:
    _refuse_release(row)
    start, name = row.text("prompt"), row.text("entry_point")
    answer = _answer(start, name, f"{row.text('test')}\n\ncheck({name})\n", seconds)
    return Problem(row.text("task_id"), COMPLETE.format(prompt=start.rstrip()), answer)


def mbpp(rows: list[Row], options: Options) -> Iterator[Problem]:
    """The test split; the prompt shows test_list, which is run; the challenge tests are not."""
    inside, counts = [r for r in rows if int(r.need("task_id")) in MBPP_TEST], options.counts
    counts["rows outside the test split"] += len(rows) - len(inside)
    for row in inside:
        setup, tests = str(row.get("test_setup_code") or ""), row.list("test_list")
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
        what = "code or test_list is not valid Python"
        raise ValueError(f"{row.where}: its {what}: {error}") from None
    defined = {node.name for node in solution.body if isinstance(node, ast.FunctionDef)}
    calls = [node.func for node in ast.walk(tests) if isinstance(node, ast.Call)]
    called = [call for call in calls if isinstance(call, ast.Name) and call.id in defined]
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
