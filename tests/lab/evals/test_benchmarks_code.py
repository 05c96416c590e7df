"""Rows of the benchmarks with programs and queries, and problems as rows of both engines."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from commands import invoke
from says import Says

from nemo_algos.engines.data.schema import Split
from nemo_algos.engines.data.tasks import read as rows_to_train_on
from nemo_algos.engines.execution.code import verify_code
from nemo_algos.engines.execution.sql import verify_sql
from nemo_algos.lab.evals.benchmarks import load

HUMANEVAL = {
    "task_id": "HumanEval/900",
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


@pytest.mark.parametrize(("name", "seconds"), [("humaneval", 10), ("humaneval_plus", 25)])
def test_humaneval_tests_are_called(read, name, seconds):
    (problem,) = read(name, [HUMANEVAL]).problems
    answer = json.loads(problem.answer)
    assert answer == {
        "prompt": HUMANEVAL["prompt"],
        "entry_point": "double",
        "tests": HUMANEVAL["test"] + "\n\ncheck(double)\n",
        "seconds": seconds,
    }
    assert problem.id == "HumanEval/900"
    assert problem.prompt == (
        'Complete this Python function.\n\n```python\ndef double(x):\n    """Twice x."""\n```\n\n'
        "Answer with one ```python block that holds the whole function and its imports."
    )
    wrong = {"double": lambda x: x}
    exec(answer["prompt"] + HUMANEVAL["canonical_solution"] + answer["tests"], {})
    with pytest.raises(AssertionError):
        exec(answer["tests"], wrong)


def test_humaneval_plus_leaves_out_the_task_whose_test_is_broken(read):
    swapped = "def check(candidate):\n    for inp in [[[1, 2]]]:\n"
    swapped += "        assert _poly(*candidate(*inp), inp) <= 0.0001\n"
    mended = swapped.replace("*candidate(*inp), inp", "*inp, candidate(*inp)")
    rows = [HUMANEVAL | {"test": test, "task_id": test[-20:]} for test in (swapped, mended)]
    loaded = read("humaneval_plus", rows)
    assert [mended in problem.answer.replace("\\n", "\n") for problem in loaded.problems] == [True]
    assert loaded.counts["tasks with a broken test left out"] == 1
    assert len(read("humaneval", rows).problems) == 2


def mbpp(number, **more):
    row = {"task_id": number, "text": "Add 1.", "code": "def inc(x):\r\n  return x + 1"}
    tests = {"test_list": ["assert inc(1) == 2", "assert inc(2) == 3"], "test_setup_code": ""}
    return row | tests | {"challenge_test_list": []} | more


def test_mbpp_ids_11_to_510_setup_after_the_solution(read):
    setup = "root = Node(1)\r\nroot.left = Node(2)"
    calls = ["assert set(sum(root)) == {3}", "assert other() is None"]
    code = "class Node: pass\n\ndef other(): pass\n\ndef sum(node): pass"
    rows = [
        mbpp(10),
        mbpp(11, test_list=["assert inc(1) == 2\r\n"]),
        mbpp(500, code=code, test_setup_code=setup, test_list=[*calls]),
        mbpp(510, challenge_test_list=["assert inc(-1) == 0"]),
        mbpp(511),
    ]
    loaded = read("mbpp", rows)
    assert [p.id for p in loaded.problems] == ["11", "500", "510"]
    assert loaded.counts == {
        "rows outside the test split": 2,
        "problems with setup code": 1,
        "problems with challenge tests, not run": 1,
        "problems with \\r\\n in their tests": 2,
    }
    answer = json.loads(loaded.problems[1].answer)
    assert answer == {
        "prompt": "",
        "entry_point": "sum",
        "tests": "root = Node(1)\nroot.left = Node(2)\nassert set(sum(root)) == {3}\n"
        "assert other() is None\n",
        "seconds": 10,
    }
    node = "class Node:\n    def __init__(self, value):\n        self.value = value\n"
    node += "def other(): pass\n\ndef sum(node):\n    return [node.value + node.left.value]\n"
    exec(node + answer["tests"], {})
    assert loaded.problems[2].prompt == (
        "Add 1.\n\nYour code must pass these tests:\n\n```python\nassert inc(1) == 2\n"
        "assert inc(2) == 3\n```\n\n"
        "Answer with one ```python block that holds the whole solution and its imports."
    )
    with pytest.raises(ValueError, match=r"1 rows .*mbpp"):
        read("mbpp", [mbpp(600)])


def test_mbpp_plus_shows_the_list_and_runs_the_script(read):
    row = {
        "task_id": 2,
        "code": "def inc(x):\n    return x + 1",
        "prompt": "Write a function to add 1.",
        "test_imports": ["import math"],
        "test_list": ["assert inc(1) == 2"],
        "test": "for x in range(9):\n    assert inc(x) == x + 1",
    }
    (problem,) = read("mbpp_plus", [row]).problems
    answer = {"prompt": "", "entry_point": "inc", "tests": row["test"] + "\n", "seconds": 25}
    assert json.loads(problem.answer) == answer
    assert "```python\nimport math\nassert inc(1) == 2\n```" in problem.prompt
    assert "range(9)" not in problem.prompt
    wrong = {"list": "assert inc(1) == 2", "Python": ["assert inc(1"]}
    for message, tests in wrong.items():
        with pytest.raises(ValueError, match=f"row 1: .*{message}"):
            read("mbpp_plus", [row | {"test_list": tests}])
    loaded = read("mbpp_plus", [row | {"test_list": ["assert dec(1) == 0"]}])
    assert json.loads(loaded.problems[0].answer)["entry_point"] == ""
    assert loaded.counts == {"problems whose tests call no function of their code": 1}


@pytest.mark.parametrize("name", ["humaneval_plus", "mbpp_plus"])
def test_evalplus_release_files_are_refused(read, name):
    row = HUMANEVAL | {"plus_input": [[1]], "base_input": [[2]], "atol": 0, "test_list": ["x"]}
    with pytest.raises(ValueError, match=r"plus_input.*hub"):
        read(name, [row])


@pytest.fixture
def databases(tmp_path):
    for name in ("pets", "o'hare"):
        folder = tmp_path / "databases" / name
        folder.mkdir(parents=True)
        with sqlite3.connect(folder / f"{name}.sqlite") as database:
            database.execute("CREATE TABLE owner (\n  id INTEGER PRIMARY KEY AUTOINCREMENT\n)")
            database.execute("CREATE TABLE dog (owner INT, `age (y)` REAL)")
            database.execute("CREATE INDEX i ON dog (owner)")
            database.execute("INSERT INTO owner VALUES (3)")
        database.close()
    return str(tmp_path / "databases")


def test_spider(read, databases):
    rows = [
        {"db_id": "pets", "question": "How many?", "query": "SELECT count(*) FROM dog", "sql": {}},
        {"db_id": "o'hare", "question": "Who?", "query": "SELECT id FROM owner order  BY id"},
    ]
    loaded = read("spider", rows, databases=databases)
    first, second = loaded.problems
    assert first.prompt == (
        "A SQLite database has these tables:\n\n```sql\nCREATE TABLE owner (\n"
        "  id INTEGER PRIMARY KEY AUTOINCREMENT\n);\n\nCREATE TABLE dog (owner INT, `age (y)` REAL)"
        ";\n```\n\nHow many?\n\nAnswer with one SQLite query in a ```sql block."
    )
    assert json.loads(first.answer) == {
        "database": str(Path(databases).resolve() / "pets" / "pets.sqlite"),
        "query": "SELECT count(*) FROM dog",
        "rule": "bag",
        "seconds": 5,
    }
    assert json.loads(second.answer)["rule"] == "ordered"
    assert [p.id for p in loaded.problems] == ["0", "1"]
    assert loaded.counts == {"queries with ORDER BY": 1}


def test_bird_evidence_and_both_keys(read, databases, monkeypatch):
    monkeypatch.chdir(databases)
    rows = [
        {"question_id": 5, "db_id": "pets", "question": "Old?", "evidence": "old: `age (y)` > 9"},
        {"question_id": 6, "db_id": "pets", "question": "Old?", "evidence": ""},
    ]
    rows[0] |= {"SQL": "SELECT 1 ORDER BY 1", "difficulty": "simple"}
    rows[1] |= {"sql": "SELECT 2"}
    loaded = read("bird", rows, databases=".")
    first, second = loaded.problems
    assert "```\n\nOld?\n\nEvidence: old: `age (y)` > 9\n\nAnswer with" in first.prompt
    assert "```\n\nOld?\n\nAnswer with" in second.prompt
    assert first.id == "5" and first.info == {"db_id": "pets", "difficulty": "simple"}
    answers = [json.loads(problem.answer) for problem in loaded.problems]
    assert [answer["query"] for answer in answers] == ["SELECT 1 ORDER BY 1", "SELECT 2"]
    path = str(Path(databases).resolve() / "pets" / "pets.sqlite")
    assert {answer["database"] for answer in answers} == {path}
    assert [answer["rule"] for answer in answers] == ["set", "set"]
    assert [answer["seconds"] for answer in answers] == [30, 30]
    assert loaded.counts == {"questions without evidence": 1}


def test_missing_databases_are_counted_and_named(read, databases):
    names = ["pets", "a", "b", "empty"]
    rows = [{"db_id": name, "question": "q", "query": "SELECT 1"} for name in names]
    (Path(databases) / "empty").mkdir()
    (Path(databases) / "empty" / "empty.sqlite").touch()
    with pytest.raises(ValueError, match=r"^3 of 4 databases .*: a, b, empty\b") as raised:
        read("spider", rows, databases=databases)
    assert f"{databases}/<db_id>/<db_id>.sqlite" in str(raised.value)
    with pytest.raises(ValueError, match=r"\bdatabases\b.* 4 "):
        read("spider", rows)
    (Path(databases) / "a").mkdir()
    (Path(databases) / "a" / "a.sqlite").write_text("no database at all")
    with pytest.raises(ValueError, match=r"a\.sqlite .*SQLite"):
        read("spider", rows, databases=databases)


@pytest.mark.parametrize("name", ["../pets", "a" * 300, ".", "/etc", "a\0b"])
def test_a_db_id_is_the_name_of_a_folder(read, databases, name):
    rows = [{"db_id": name, "question": "q", "query": "SELECT 1"}]
    with pytest.raises(ValueError, match="db_id"):
        read("spider", rows, databases=databases)


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
def apps(read):
    """apps(row, ...) -> Loaded."""
    return lambda *rows: read("apps", rows)


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
        ({"question": ""}, "rows.jsonl row 2 'question'"),
        ({"input_output": '{"inputs": ['}, "rows.jsonl row 2 input_output JSON"),
        ({"input_output": "[1]"}, "rows.jsonl row 2 input_output inputs outputs"),
        ({"input_output": '{"inputs": ["1"]}'}, "rows.jsonl row 2 input_output 'outputs'"),
        ({"input_output": cases_of(([], 1), fn_name="f()")}, "rows.jsonl row 2 fn_name 'f()'"),
        ({"input_output": cases_of(([], 1), fn_name="if")}, "rows.jsonl row 2 fn_name 'if'"),
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
    return said, rows_to_train_on(Split(data_path=str(file))), str(file)


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
