"""The same rows from parquet, data sets on disk and conversations; what is wrong with them."""

import json

import datasets
import pytest
from says import Says

from nemo_algos.engines.data import rows, tasks
from nemo_algos.engines.data.schema import DataSection, Split
from nemo_algos.engines.data.tasks import MathProblems

ROWS = [{"problem": f"{i} + 1", "answer": str(i + 1), "level": i} for i in range(3)]


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


SYSTEM, USER, GOLD = (
    {"role": role, "content": content}
    for role, content in (("system", "be brief"), ("user", "1 + 1"), ("assistant", "2"))
)


def task_of(tmp_path, row, **settings):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(row) + "\n")
    split = {"data_path": str(path), "input_key": "messages"}
    return MathProblems(DataSection.model_validate({"train": split, **settings}), 0)


@pytest.mark.parametrize(
    ("messages", "more", "before"),
    [
        ([USER], {"answer": "2"}, []),
        ([USER, GOLD], {}, []),
        ([SYSTEM, USER], {"answer": "2"}, [SYSTEM]),
        ([SYSTEM, USER, GOLD], {}, [SYSTEM]),
        ([SYSTEM, USER, GOLD, USER], {"answer": "2"}, [SYSTEM, USER, GOLD]),
        ([USER, {**GOLD, "content": "a draft"}], {"answer": "2"}, []),
    ],
)
def test_a_conversation_is_asked_and_its_last_answer_is_the_gold(tmp_path, messages, more, before):
    settings = {"prompt": "What is {problem}?", "answer_prefix": "{problem} ="}
    task = task_of(tmp_path, {"messages": messages, **more}, **settings)
    (example,) = task.train
    assert example.answer == "2" and example.row == {"messages": messages, **more}
    said = {"role": "user", "content": "What is 1 + 1?"}
    assert task.prompt(example) == [*before, said] and task.prefix(example) == "1 + 1 ="


def test_the_system_message_of_the_config_where_the_row_has_none(tmp_path):
    own, none = (
        task_of(
            tmp_path, {"messages": m, "answer": "2"}, system_prompt="Think.", prompt="{problem}"
        )
        for m in ([SYSTEM, USER], [USER])
    )
    assert own.prompt(own.train[0]) == [SYSTEM, USER]
    assert none.prompt(none.train[0]) == [{"role": "system", "content": "Think."}, USER]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([SYSTEM], "row 1 user"),
        ([], "row 1 user"),
        ([{"role": "tool", "content": "x"}], "row 1 0 role list"),
        ([{"role": "user"}], "row 1 0 content list"),
        (["hello"], "row 1 0 list"),
    ],
)
def test_what_is_no_conversation(tmp_path, messages, message):
    with pytest.raises(ValueError) as raised:
        task_of(tmp_path, {"messages": messages, "answer": "2"})
    assert str(raised.value) == Says(message) and "\n" not in str(raised.value)


def test_a_conversation_without_a_gold_answer(tmp_path):
    with pytest.raises(ValueError, match=r"row 1 .*'answer' .*output_key"):
        task_of(tmp_path, {"messages": [USER]})


def test_code_that_a_folder_brings_is_not_run(tmp_path):
    ran = tmp_path / "ran"
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text(f"open({str(ran)!r}, 'w')\n")
    with pytest.raises(ValueError, match=r"cannot load .*scripted: "):
        rows.load(str(folder))
    assert not ran.exists()
