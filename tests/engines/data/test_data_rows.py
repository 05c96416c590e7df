"""Rows of files, of data sets on disk and of the hub: the same from each, or a sentence."""

import csv
import gzip
import hashlib
import json

import datasets
import pytest
from says import Says

from nemo_algos.engines.data import rows, tasks
from nemo_algos.engines.data.schema import Split

# a line ends at a newline, and not at what Unicode calls a line's end
LINED = [{"problem": "one\u2028two\x85three", "answer": "1"}, {"problem": "é", "answer": "2"}]
LINES = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in LINED) + "\r\n"
ROWS = [{"problem": f"{i} + 1", "answer": str(i + 1), "level": i} for i in range(3)]


def table(path):
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["problem", "answer"])
        writer.writeheader()
        writer.writerows(LINED)


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.json", "a.csv", "a.jsonl.gz", "a.v2.json.gz", "a.csv.gz"]
)
def test_every_format_gives_the_same_rows(tmp_path, name):
    path = tmp_path / name.removesuffix(".gz")
    if path.suffix == ".csv":
        table(path)
    else:
        text = LINES if path.suffix == ".jsonl" else json.dumps(LINED)
        path.write_text(text, encoding="utf-8", newline="")
    if name.endswith(".gz"):
        (tmp_path / name).write_bytes(gzip.compress(path.read_bytes()))
    found, source = rows.load(str(tmp_path / name))
    assert [row.values for row in found] == LINED
    digest = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    assert source == f"{name} sha256:{digest}"
    place = 3 if ".jsonl" in name else 2  # a blank line counts
    assert found[1].where == f"{tmp_path / name}, row {place}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"a": 1}\n\n{"a": \n{"b"', "a.jsonl 3 JSON"),
        ("a.jsonl", b"1\n", "a.jsonl 1 object"),
        ("a.jsonl", b"[1]\n", "a.jsonl JSON .json"),
        ("a.jsonl", b"\n \n", "a.jsonl rows"),
        ("a.json", b'{"data": []}', "a.json list"),
        ("a.json", b"[]", "rows"),
        ("a.txt", b"", ".jsonl .json .csv .gz .parquet"),
        ("a.parquet", b"PAR1", "a.parquet Parquet"),
        ("a.jsonl.gz", b"no gzip", "a.jsonl.gz"),
        ("a.jsonl", b"\xff\xfe\xff", "a.jsonl decode"),
        ("b.jsonl", None, "b.jsonl"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as raised:
        rows.load(str(tmp_path / name))
    assert str(raised.value) == Says(message) and "\n" not in str(raised.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """ROWS as a .parquet file, and in folders: saved, saved with splits, and as on the hub."""
    folder = tmp_path_factory.mktemp("sets")
    table = datasets.Dataset.from_list(ROWS)
    test = datasets.Dataset.from_list(ROWS[:1])
    table.to_parquet(folder / "a.parquet")
    table.save_to_disk(folder / "saved")
    datasets.DatasetDict(train=table, test=test).save_to_disk(folder / "splits")
    for split, of in (("train", table), ("test", test)):
        of.to_parquet(folder / "hub" / "data" / f"{split}-00000-of-00001.parquet")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "split"), [("a.parquet", None), ("saved", None), ("splits", "train"), ("hub", "train")]
)
def test_the_same_rows_from_every_kind(folder, name, split):
    path = folder / name
    found, source = rows.load(str(path), split=split)
    assert [row.values for row in found] == ROWS
    named = f"{name} {split}" if split else name
    assert source.startswith(named) and ("sha256:" in source or "fingerprint:" in source)
    where = str(path) if name.endswith("parquet") else named
    assert found[1].where == f"{where}, row 2"
    examples = tasks.read(Split(data_path=str(path), split=split))
    assert examples == [(row["problem"], row["answer"], row) for row in ROWS]


@pytest.mark.parametrize("name", ["splits", "hub"])
@pytest.mark.parametrize("split", [None, "validation"])
def test_a_split_is_named_where_there_are_several(folder, name, split):
    with pytest.raises(ValueError) as raised:
        rows.load(str(folder / name), split=split)
    said = str(raised.value)
    assert "train" in said and "test" in said and "split" in said and "\n" not in said


def test_a_file_has_no_split(folder):
    with pytest.raises(ValueError, match=r"a\.parquet .*subset .*split"):
        rows.load(str(folder / "a.parquet"), split="train")


def test_what_the_hub_does_not_have(monkeypatch):
    def load_dataset(name, subset, split):
        raise ConnectionError(f"no {name} {subset} {split}\nand more")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ValueError) as raised:
        rows.load("some/name", subset="main", split="test")
    assert str(raised.value) == (Says("some/name main test hub"))


def test_code_that_a_folder_brings_is_not_run(tmp_path):
    ran = tmp_path / "ran"
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text(f"open({str(ran)!r}, 'w')\n")
    with pytest.raises(ValueError, match=r"cannot load .*scripted: "):
        rows.load(str(folder))
    assert not ran.exists()
