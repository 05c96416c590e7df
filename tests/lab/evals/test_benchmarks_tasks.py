"""Rows of the benchmarks with options, code, SQL and images, in each of their formats."""

import base64
import json
import sqlite3
from pathlib import Path

import pytest
from PIL import Image

from nemo_algos.engines.data.rows import Row
from nemo_algos.lab.evals.benchmarks import load
from nemo_algos.lab.evals.benchmarks.boxed import geometry3k, order
from nemo_algos.lab.evals.problem import Options


@pytest.fixture
def read(tmp_path):
    """read(name, rows, ...) -> Loaded, through a JSON file."""

    def read(name, rows, **options):
        path = tmp_path / "rows.json"
        path.write_text(json.dumps(rows))
        return load(name, str(path), **options)

    return read


def gpqa(name, options="right w1 w2 w3"):
    keys = ["Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"]
    given = dict(zip(keys, options.split(), strict=True))
    return {"Record ID": name, "Question": f"Which, {name}?\n", "Subdomain": "Optics"} | given


def test_gpqa_options_in_the_order_of_their_hashes(read):
    # printf 0/recA/2 | sha256sum and so on: 2b4a, 733e, 6929, e13b; of recB f69d, 7afc, 4475, ac05
    assert order(0, "recA") == [0, 2, 1, 3]
    assert order(0, "recB") == [2, 1, 3, 0]
    assert order(1, "recA") == [2, 3, 1, 0]
    loaded = read("gpqa_diamond", [gpqa("recA"), gpqa("recB", "right w w w3")])
    first, second = loaded.problems
    assert first.prompt == (
        "Which, recA?\n\nA. right\nB. w2\nC. w1\nD. w3\n\n"
        "Please reason step by step, and put the letter of the right option within \\boxed{}, "
        "as in \\boxed{A}."
    )
    assert (first.id, first.answer, second.answer) == ("recA", "A", "D")
    assert first.info == {"Subdomain": "Optics"}
    assert loaded.counts == {"problems with equal options": 1}
    assert read("gpqa_main", [gpqa("recA")], seed=1).problems[0].answer == "D"


def acp(number, group, **more):
    return {"id": number, "group": group, "context": "Ferry.", "question": "So?"} | more


def test_acpbench_from_a_folder(tmp_path):
    (tmp_path / "app").mkdir()
    bools = {
        "app.test.bool.json": [acp(7, "app", answer="yes")],
        "app/test.bool.json": [acp(7, "val", answer="no", question="No?")],
        "app.dev.bool.json": [acp(8, "app", answer="maybe")],
    }
    for name, rows in bools.items():
        (tmp_path / name).write_text(json.dumps(rows))
    choices = {"text": ["x", "y"], "label": ["A", "B"]}
    row = acp(-1, "mc", answer="B", choices=choices, question="Which? A. x. B. y.")
    (tmp_path / "app.test.mcq.json").write_text(json.dumps([row]))
    problems = load("acpbench_bool", str(tmp_path)).problems
    assert {(p.id, p.answer) for p in problems} == {("app/7", "yes"), ("val/7", "no")}
    assert (
        "Ferry.\n\nSo?\n\nPlease reason step by step, and put your final answer, yes or no, "
        in [p.prompt.partition("within")[0] for p in problems]
    )
    (mcq,) = load("acpbench_mcq", str(tmp_path)).problems
    assert (mcq.id, mcq.answer) == ("mc/-1", "B")
    assert mcq.prompt.startswith("Ferry.\n\nWhich? A. x. B. y.\n\nPlease reason")


def test_acpbench_answers_that_are_none(read):
    with pytest.raises(ValueError, match=r"row 1: .*yes, no.*'maybe'"):
        read("acpbench_bool", [acp(1, "g", answer="maybe")])
    row = acp(1, "g", answer="C", choices={"text": ["x", "y"], "label": ["A", "B"]})
    with pytest.raises(ValueError, match="A, B, got 'C'"):
        read("acpbench_mcq", [row])


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


def test_geometry3k_images_as_paths_and_urls(read, tmp_path):
    Image.new("RGB", (2, 1), "red").save(tmp_path / "a.png")
    url = "https://example.org/b.png"
    row = {"images": ["a.png", url], "problem": "<image>Find x in <image>.", "answer": "2.0"}
    loaded = read("geometry3k", [row, row | {"images": [url], "problem": "Find y."}])
    first, second = loaded.problems
    assert first.images == (str((tmp_path / "a.png").resolve()), url)
    assert first.prompt.startswith("Find x in .\nPlease reason step by step")
    assert (first.answer, second.images) == ("2", (url,))
    assert loaded.counts == {
        "float golds": 2,
        "other number of <image> marks than images": 1,
        "ids from the row number": 2,
    }
    with pytest.raises(ValueError, match=r"row 1: image .*none\.png"):
        read("geometry3k", [row | {"images": ["none.png"]}])
    with pytest.raises(ValueError, match=r"row 1 .*'images'"):
        read("geometry3k", [row | {"images": []}])


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("/etc/passwd", "outside"),
        ("../secret.png", "outside"),
        ("sub/../../secret.png", "outside"),
        ("link.png", "outside"),
        ("linked/secret.png", "outside"),
        ("text.png", "picture"),
        ("empty.png", "picture"),
        ("a" * 5000, "image"),
        ("sub", "not found"),
        ("a\0b", "image"),
    ],
)
def test_geometry3k_sends_no_file_but_pictures_beside_the_rows(tmp_path, image, named):
    Image.new("RGB", (2, 1), "red").save(tmp_path / "secret.png")
    rows = tmp_path / "rows"
    (rows / "sub").mkdir(parents=True)
    Image.new("RGB", (2, 1), "red").save(rows / "sub" / "a.png")
    (rows / "text.png").write_text("root:x:0:0")
    (rows / "empty.png").touch()
    (rows / "link.png").symlink_to(tmp_path / "secret.png")
    (rows / "linked").symlink_to(tmp_path)

    def images(*names):
        row = Row({"images": [*names], "problem": "x", "answer": "1"}, "row 1")
        (problem,) = geometry3k([row], Options(folder=rows))
        return problem.images

    assert images("sub/a.png") == (str((rows / "sub" / "a.png").resolve()),)
    with pytest.raises(ValueError, match=rf"row 1.*{named}") as refused:
        images("sub/a.png", image)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", ["../pets", "a" * 300, ".", "/etc", "a\0b"])
def test_a_db_id_is_the_name_of_a_folder(read, databases, name):
    rows = [{"db_id": name, "question": "q", "query": "SELECT 1"}]
    with pytest.raises(ValueError, match="db_id"):
        read("spider", rows, databases=databases)


def test_geometry3k_pictures_of_the_hub_become_data_urls(tmp_path):
    picture = Image.new("RGB", (2, 1), "red")
    picture.save(tmp_path / "a.jpg")
    jpeg = (tmp_path / "a.jpg").read_bytes()
    images = [picture, {"bytes": jpeg, "path": None}]
    row = Row({"images": images, "problem": "<image><image>x", "answer": "1", "id": "g"}, "hub")
    (problem,) = geometry3k([row], Options())
    png, jpg = problem.images
    head, _, content = png.partition(",")
    (tmp_path / "b.png").write_bytes(base64.b64decode(content))
    with Image.open(tmp_path / "b.png") as again:
        assert head == "data:image/png;base64" and again.format == "PNG"
        assert again.size == (2, 1) and again.getpixel((0, 0)) == (255, 0, 0)
    assert jpg == "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
    row = Row({"images": [{"bytes": b"root:x:0:0"}], "problem": "x", "answer": "1"}, "row 1")
    with pytest.raises(ValueError, match=r"row 1.*picture"):
        list(geometry3k([row], Options()))
