"""Reading of files and of the hub, names, and the table."""

import csv
import gzip
import hashlib
import json
import sys
from types import ModuleType

import pytest
from says import Says

from nemo_algos.engines.data import countdown, puzzles
from nemo_algos.engines.data import rows as files
from nemo_algos.lab.evals.benchmarks import load

ROWS = [{"problem": "one\u2028two", "answer": "1"}, {"problem": "é", "answer": "2"}]
LINES = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\r\n"


def table(path):
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["problem", "answer"])
        writer.writeheader()
        writer.writerows(ROWS)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.jsonl.gz", "a.v2.json.gz"])
def test_every_format_gives_the_same_rows(tmp_path, name):
    path = tmp_path / name.removesuffix(".gz")
    if path.suffix == ".csv":
        table(path)
    else:
        text = LINES if path.suffix == ".jsonl" else json.dumps(ROWS)
        path.write_text(text, encoding="utf-8", newline="")
    if name.endswith(".gz"):
        (tmp_path / name).write_bytes(gzip.compress(path.read_bytes()))
    rows, source = files.load(str(tmp_path / name))
    assert [row.values for row in rows] == ROWS
    digest = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    assert source == f"{name} sha256:{digest}"
    place = 3 if ".jsonl" in name else 2  # a blank line counts
    assert rows[1].where == f"{tmp_path / name}, row {place}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": ', "a.jsonl 2 JSON"),
        ("a.jsonl", b"1\n", "a.jsonl 1 object"),
        ("a.jsonl", b"[1]\n", "a.jsonl JSON .json"),
        ("a.json", b'{"data": []}', "a.json list"),
        ("a.json", b"[]", "rows"),
        ("a.txt", b"", ".jsonl .json .csv .gz .parquet"),
        ("a.parquet", b"PAR1", "a.parquet Parquet"),
        ("a.jsonl.gz", b"no gzip", "a.jsonl.gz"),
        ("a.jsonl", b"\xff\xfe\xff", "a.jsonl"),
        ("b.jsonl", None, "b.jsonl"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as raised:
        files.load(str(tmp_path / name))
    assert str(raised.value) == Says(message) and "\n" not in str(raised.value)


def test_a_folder_holds_a_data_set_or_files_of_a_pattern(tmp_path):
    with pytest.raises(ValueError, match=rf"^cannot load {tmp_path}: "):
        load("aime25", str(tmp_path))
    with pytest.raises(ValueError, match=r"\*test\.bool\.json\*"):
        load("acpbench_bool", str(tmp_path))


def test_a_name_must_be_right():
    with pytest.raises(ValueError, match=r"'aime2' .*aime2[45]"):
        load("aime2", "x.jsonl")
    with pytest.raises(ValueError, match=r"'MATH500'"):
        load("MATH500", "x.jsonl")


def test_the_hub_is_refused_without_datasets(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as where it is not installed
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    for data in ("hub", str(tmp_path), str(tmp_path / "a.parquet"), "some/name"):
        with pytest.raises(ValueError, match=r"datasets .*\.jsonl"):
            load("aime25", data)
    with pytest.raises(ValueError, match=r"^math .*data"):
        load("math")


class Table(list):
    _fingerprint = "f00d"


@pytest.fixture
def hub(monkeypatch):
    """hub(function) stands in for datasets.load_dataset."""

    def hub(load_dataset):
        module = ModuleType("datasets")
        module.load_dataset = load_dataset
        module.disable_progress_bars = lambda: None
        monkeypatch.setitem(sys.modules, "datasets", module)

    return hub


def test_what_the_hub_is_asked_for(hub):
    asked = []

    def load_dataset(path, config, split):
        asked.append((path, config, split))
        number = len(asked)
        row = {"id": number, "group": "g", "context": "c", "question": f"q{number}"}
        return Table([row | {"answer": "yes"}])

    hub(load_dataset)
    loaded = load("acpbench_bool")
    tasks = ["app", "areach", "just", "land", "prog", "reach", "val"]
    assert asked == [("ibm-research/acp_bench", f"acp_{task}_bool", "test") for task in tasks]
    assert [p.id for p in loaded.problems] == [f"g/{i}" for i in range(1, 8)]
    assert loaded.source.endswith("fingerprint:" + "+".join(["f00d"] * 7))


def test_an_error_of_the_hub_is_one_of_ours(hub):
    def load_dataset(path, config, split):
        raise ConnectionError("no route")

    hub(load_dataset)
    with pytest.raises(ValueError, match=r"math-ai/aime25 test.* no route"):
        load("aime25")


@pytest.mark.parametrize(("name", "numbers"), [("countdown", 3), ("countdown_4", 4)])
def test_puzzles_are_those_held_out_of_training(name, numbers):
    problems = load(name, limit=50).problems
    held_out = puzzles.held_out(50, countdown.Rules(numbers))
    assert [p.id for p in problems] == [p.answer for p in problems]
    for problem, puzzle in zip(problems, held_out, strict=True):
        assert (problem.prompt, puzzles.is_held_out(puzzle)) == (f"{puzzle} :", True)
    assert load(name).problems[:50] == problems
