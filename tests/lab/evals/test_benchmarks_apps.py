"""APPS as its authors ship it, and its problems as rows of both engines."""

import json
import sqlite3
from contextlib import closing

import pytest
from commands import invoke
from says import Says

from nemo_algos.engines.data.schema import Split
from nemo_algos.engines.data.tasks import read
from nemo_algos.lab.evals.benchmarks import load
from nemo_algos.lab.rewards.code import verify_code
from nemo_algos.lab.rewards.sql import verify_sql

CLASS = "class Solution:\n    def pair(self, xs: List[int]) -> List[int]:\n        "


def cases_of(*cases, **more):
    inputs, outputs = map(list, zip(*cases, strict=True)) if cases else ([], [])
    return json.dumps({"inputs": inputs, "outputs": outputs} | more)


def row(number, tests, **more):
    about = {"problem_id": number, "question": f"Task {number}.\n", "solutions": "[]"}
    return about | {"input_output": tests, "difficulty": "interview", "starter_code": ""} | more


STDIN = row(0, cases_of(("1 2\n", "3\n"), ("3 4\n", "7\n")))
CALLS = row(1, cases_of(([2], 4), ([3], 6), fn_name="twice"), starter_code="def twice(x):\n\t")
METHOD = row(2, cases_of(([[2, 3]], [3, 2]), fn_name="pair"), starter_code=CLASS)


@pytest.fixture
def apps(tmp_path):
    """apps(row, ...) -> Loaded, through JSON lines."""

    def apps(*rows):
        path = tmp_path / "train.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return load("apps", str(path))

    return apps


def rewards(problem, *responses):
    return [verify_code(f"So:\n```python\n{r}\n```\n", problem.answer) for r in responses]


def test_each_kind_of_problem(apps):
    loaded = apps(STDIN, CALLS, METHOD, row(3, ""), row(4, cases_of()), row(5, "{}"))
    counts = {"judged by stdout": 1, "judged by calls": 2, "without tests left out": 3}
    assert loaded.counts == {f"problems {what}": number for what, number in counts.items()}
    stdin, calls, method = loaded.problems
    assert [p.id for p in loaded.problems] == ["0", "1", "2"]
    assert stdin.info == {"difficulty": "interview"}
    task, reads, answer = stdin.prompt.split("\n\n")
    assert task == "Task 0."
    assert "standard input" in reads and "standard output" in reads
    assert "```python" in answer
    assert "called as `twice` and begins so:\n\n```python\ndef twice(x):\n```\n" in calls.prompt
    assert "called as `Solution().pair` and begins so" in method.prompt
    assert json.loads(stdin.answer)["seconds"] == 4
    total = "a, b = map(int, input().split())\nprint({})"
    assert rewards(stdin, total.format("a + b"), total.format("a * b"), "print(3)") == [1, 0, 0]
    twice = "def twice(x): return {} * x"
    assert rewards(calls, twice.format(2), twice.format(3)) == [1, 0]
    pair = CLASS + "return tuple(xs[{}])"  # a tuple, and List is not imported
    assert rewards(method, pair.format("::-1"), pair.format(":")) == [1, 0]


@pytest.mark.parametrize(
    ("gold", "written", "reward"),
    [
        ("1 2\n3\n", "1 2 3", 1),
        (["1 2", "3"], "1 2\n3\n", 1),  # a list of lines
        ("0.333333", "0.33333334", 1),
        ("0.333333", "0.3334", 0),
        ("1000000", "1000001.0", 0),  # as near as APPS' own check wants, and another number
        ("1000000", "1000001", 0),
        ("a.b", "a.b", 1),
        ("a.b", "c", 0),
        ("YES", "yes", 0),
        ("1", "1 1", 0),
        ("", "", 1),
    ],
)
def test_the_words_of_the_output(apps, gold, written, reward):
    (problem,) = apps(row(0, cases_of((["x", ""], gold)))).problems
    assert rewards(problem, f"assert input() == 'x'\nprint({written!r})") == [reward]


@pytest.mark.parametrize(
    ("gold", "returned", "reward"),
    [([5], "5", 1), ([5], "[5]", 1), ([5], "(5,)", 1), ([5, 6], "5", 0), ({"1": 2}, "{1: 2}", 1)],
)
def test_a_result_may_be_in_a_list(apps, gold, returned, reward):
    (problem,) = apps(row(0, cases_of(([], gold), fn_name="f"))).problems
    assert problem.prompt.count("def f(\n") == 1
    assert rewards(problem, f"def f(): return {returned}") == [reward]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"question": ""}, "train.jsonl row 2 'question'"),
        ({"input_output": '{"inputs": ['}, "train.jsonl row 2 input_output JSON"),
        ({"input_output": "[1]"}, "train.jsonl row 2 input_output inputs outputs"),
        ({"input_output": '{"inputs": ["1"]}'}, "train.jsonl row 2 input_output 'outputs'"),
        ({"input_output": cases_of(([], 1), fn_name="f()")}, "train.jsonl row 2 fn_name 'f()'"),
        ({"input_output": cases_of(([], 1), fn_name="if")}, "train.jsonl row 2 fn_name 'if'"),
    ],
)
def test_a_broken_row_is_named_by_its_number(apps, broken, said):
    with pytest.raises(ValueError) as raised:
        apps(STDIN, CALLS | broken)
    assert str(raised.value) == Says(said)


def test_rows_that_cannot_be_run_are_counted(apps):
    long = '{"inputs": [[1]], "outputs": [' + "1" * 5000 + '], "fn_name": "f"}'
    uneven = json.dumps({"inputs": ["1", "2"], "outputs": ["1"]})
    counts = apps(STDIN, row(8, long), row(9, uneven)).counts
    (digits,) = (number for said, number in counts.items() if "4300" in said)
    (lengths,) = (number for said, number in counts.items() if "inputs" in said)
    assert (digits, lengths) == (1, 1)


def test_the_authors_folders_are_the_same_problems(apps, tmp_path):
    for name, given in {"0000": STDIN, "0002": METHOD}.items():
        folder = tmp_path / "APPS" / "train" / name
        folder.mkdir(parents=True)
        (folder / "question.txt").write_text(given["question"])
        (folder / "input_output.json").write_text(given["input_output"])
        (folder / "metadata.json").write_text('{"difficulty": "interview"}')
        (folder / "starter_code.py").write_text(given["starter_code"])
    loaded, lines = load("apps", str(tmp_path / "APPS" / "train")), apps(STDIN, METHOD)
    assert [p.id for p in loaded.problems] == ["0000", "0002"]
    assert [p.answer for p in loaded.problems] == [p.answer for p in lines.problems]
    assert [p.info for p in loaded.problems] == [p.info for p in lines.problems]
    assert loaded.source.startswith("train sha256:")
    (tmp_path / "APPS" / "train" / "0000" / "metadata.json").write_text("{")
    with pytest.raises(ValueError, match=r"0000/metadata\.json is not JSON"):
        load("apps", str(tmp_path / "APPS" / "train"))
    with pytest.raises(ValueError, match=r"question\.txt"):
        load("apps", str(tmp_path / "APPS"))


def written(tmp_path, *words):
    file = tmp_path / "data" / "rows.jsonl"
    said = invoke("export", "problems", *words[:2], str(file), *words[2:]).output
    return said, read(Split(data_path=str(file))), str(file)


def test_problems_as_rows_to_train_on(tmp_path):
    path, grid = tmp_path / "train.jsonl", row(7, cases_of(("####\n#..#\n", "#### 2\n")))
    path.write_text("".join(json.dumps(given) + "\n" for given in (STDIN, grid)))
    said, rows, file = written(tmp_path, "apps", str(path))
    problems = load("apps", str(path)).problems
    assert [example[:2] for example in rows] == [(p.prompt, p.answer) for p in problems]
    assert rows[1].row["difficulty"] == "interview" and rows[1].row["id"] == "7"
    assert said.splitlines()[1:] == ["2 problems judged by stdout", "verifier code, deadline 9"]
    assert said.startswith(f"{file}: 2 problems from train.jsonl sha256:")


def test_bird_train_as_rows_to_train_on(tmp_path):
    database = tmp_path / "train_databases" / "movies" / "movies.sqlite"
    database.parent.mkdir(parents=True)
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE film (name TEXT, year INTEGER)")
        db.execute("INSERT INTO film VALUES ('Alien', 1979), ('Heat', 1995)")
        db.commit()
    about = {"db_id": "movies", "question": "Which are old?", "evidence": "old: before 1990"}
    path = tmp_path / "train.json"
    path.write_text(json.dumps([about | {"SQL": "SELECT name FROM film WHERE year < 1990"}]))
    folder = ("--databases", str(database.parents[1]))
    said, ((prompt, answer, plain),), _ = written(tmp_path, "bird", str(path), *folder)
    assert plain["db_id"] == "movies" and said.endswith("verifier sql, deadline 65\n")
    assert "```sql\nCREATE TABLE film (" in str(prompt)
    assert "Which are old?\n\nEvidence: old: before 1990\n\n" in prompt
    query = "```sql\nSELECT name FROM film WHERE {}\n```"
    given = [query.format(where) for where in ("year = 1979", "year = 1995", "1; DROP TABLE film")]
    assert [verify_sql(response, answer) for response in given] == [1, 0, 0]
    path.write_text(json.dumps([about | {"SQL": "SELECT 1"}, about]))
    refused = invoke("export", "problems", "bird", str(path), "x.jsonl", *folder)
    assert refused.exit_code == 2 and refused.output == Says("train.json row 2 'SQL' 'sql'")
