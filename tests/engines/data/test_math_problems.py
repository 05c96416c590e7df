"""Training problems: files and their errors, what is dropped, epochs, rewards by the pool."""

import gzip
import json
from collections import Counter

import pytest
import small_llama
from says import Says

from nemo_algos.engines.data import tasks
from nemo_algos.engines.data.schema import DataSection, Split
from nemo_algos.engines.data.tasks import MathProblems, Response
from nemo_algos.engines.local.hf import chat


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def problems(count):
    return [{"problem": f"what is {i} + 1 ?", "answer": str(i + 1)} for i in range(count)]


def read(path, **keys):
    examples = tasks.read(Split(data_path=str(path), **keys))
    return [(example.problem, example.answer) for example in examples]


def responses(*texts):
    return [Response(text, len(text.split())) for text in texts]


def error(path, text, **keys):
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError) as raised:
        read(path, **keys)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_pairs_in_the_files_order_blank_lines_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"problem": "1 + 1", "answer": "2"}\n\n  \n{"problem": "é", "answer": 3}\n',
        encoding="utf-8",
    )
    assert read(path) == [("1 + 1", "2"), ("é", "3")]


@pytest.mark.parametrize("separator", ["\u2028", "\x85"])
def test_a_line_ends_at_a_newline_and_nowhere_else(tmp_path, separator):
    path, problem = tmp_path / "a.jsonl", f"one{separator}two"
    line = json.dumps({"problem": problem, "answer": "3"}, ensure_ascii=False) + "\r\n"
    path.write_bytes(line.encode())
    assert read(path) == [(problem, "3")]


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("She has 16 - 3 - 4 = 9 eggs.\n9 * 2 = <<9*2=18>>18\n#### 18", "18"),
        ("#### -1,234 ", "-1234"),
        ("#### 1,5", "1,5"),
        ("1,234", "1,234"),
        ("18", "18"),
        ("#### 1 #### 2", "2"),
        ("steps #### 42", "42"),
        ("{1, 2} has two #### 1,002", "1002"),
        ('{"inputs": ["#### 1"], "outputs": ["2"]}', '{"inputs": ["#### 1"], "outputs": ["2"]}'),
        (0.5, "0.5"),
        ("#### ", ""),
        ("", ""),
    ],
)
def test_of_a_gsm8k_answer_what_follows_the_hashes(tmp_path, answer, gold):
    rows = [{"question": "q", "solution": given} for given in (answer, "1")]
    path = jsonl(tmp_path / "a.jsonl", rows)
    assert read(path, input_key="question", output_key="solution") == [("q", gold), ("q", "1")]


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.jsonl.gz", "a.json.gz", "a.csv.gz"])
def test_the_same_rows_in_every_format(tmp_path, name):
    rows = problems(3)
    text = "problem,answer\n" + "".join(f"{r['problem']},{r['answer']}\n" for r in rows)
    if "csv" not in name:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        text = lines if "jsonl" in name else json.dumps(rows)
    content = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    (tmp_path / name).write_bytes(content)
    assert read(tmp_path / name) == [(row["problem"], row["answer"]) for row in rows]


def test_a_broken_line_is_named_by_its_number(tmp_path):
    lines = [json.dumps(p) for p in problems(30)]
    lines[16], lines[20] = '{"problem": "what", ', "also broken"
    path = tmp_path / "train.jsonl"
    message = error(path, "\n".join(lines))
    assert message == Says(f"{path} 17 JSON")
    lines[3:4] = ["", ""]  # a line more, blank ones count
    assert error(path, "\n".join(lines)) == Says(f"{path} 18 JSON")


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ('{"problm": "q", "answer": "1"}', {}, "row 1 'problem' problm"),
        (
            '{"question": "q", "answer": "1"}\n{"question": "q"}',
            {"input_key": "question"},
            "row 2 'answer' question data.train.output_key",
        ),
        ("[1, 2]", {}, "JSON .json"),
        ("3", {}, "row 1 object"),
        ("", {}, "rows"),
        ("\n \n", {}, "rows"),
        ('{"problem": "q", "answer": ""}', {}, "problem answer"),
        (None, {}, "file"),
        (b"\xff\xfe", {}, "decode"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, text, keys, message):
    path = tmp_path / "train.jsonl"
    said = error(path, text, **keys)
    assert str(path) in said and said == Says(message)


@pytest.fixture
def task_of(tmp_path):
    """A function of (rows, validation rows, seed, **settings of `data`); closed afterwards."""
    made = []

    def make(rows, validation=None, seed=0, **settings):
        data = {"task": "math", "prompt": "{problem}", **settings}
        data["train"] = {"data_path": str(jsonl(tmp_path / "train.jsonl", rows))}
        if validation is not None:
            data["validation"] = {"data_path": str(jsonl(tmp_path / "test.jsonl", validation))}
        made.append(MathProblems(DataSection(**data), seed))
        return made[-1]

    yield make
    for task in made:
        task.close()


def ids(task, example):
    return chat(small_llama.tokenizer(), task.prompt(example), task.prefix(example))


def test_the_prompt_is_the_chat_with_the_beginning_of_the_answer(task_of):
    task = task_of(problems(3), problems(2), prompt="so {problem}", answer_prefix="{problem} =")
    text = small_llama.tokenizer().decode(ids(task, task.train[2]))
    assert text == "user so what is 2 + 1 ? assistant what is 2 + 1 ? ="
    assert task.held_out(5) == task.validation and task.held_out(1) == task.validation[:1]
    assert task_of(problems(1)).held_out(5) == []


def test_empty_answers_and_long_prompts_are_dropped_and_counted(task_of):
    long = {"problem": "what is " + "1 + " * 20 + "1 ?", "answer": "21"}
    empty = {"problem": "what is 3 ?", "answer": "so 3\n#### "}
    rows = [*problems(4), long, empty, long]
    task = task_of(rows, [long, *problems(2)], max_input_seq_length=20)
    assert (len(task.train), len(task.validation), task.dropped) == (6, 3, 1)
    task.keep(lambda example: len(ids(task, example)) <= 20)
    assert (len(task.train), len(task.validation), task.dropped) == (4, 2, 4)
    with pytest.raises(ValueError, match=r"train\.jsonl: every prompt .*max_input_seq_length: 20"):
        task.keep(lambda example: False)


@pytest.mark.parametrize("number", [1, 3, 4, 10, 25])
def test_every_problem_once_an_epoch_and_another_order_the_next(task_of, number):
    task, n = task_of(problems(10)), 10
    asked = [p for step in range(60 // number) for p in task.examples(step, number)]
    epochs = [asked[i : i + n] for i in range(0, len(asked) - n + 1, n)]
    assert len(epochs) >= 5
    for epoch in epochs:
        assert Counter(p.problem for p in epoch) == Counter(p.problem for p in task.train)
    assert len({tuple(p.problem for p in epoch) for epoch in epochs}) == len(epochs)


def test_a_seed_and_a_step_give_the_same_problems_whenever_asked(task_of):
    one, same, other = (task_of(problems(10), seed=seed) for seed in (1, 1, 2))
    straight = [one.examples(step, 7) for step in range(9)]
    assert [same.examples(step, 7) for step in reversed(range(9))][::-1] == straight
    assert [other.examples(step, 7) for step in range(9)] != straight
    assert straight[0] != one.train[:7]


def test_rewards_by_math_verify_in_the_pool(task_of):
    bad = {"problem": "what", "answer": "}"}  # a gold answer that nothing can equal
    task = task_of([*problems(3), bad])
    asked = [task.train[i] for i in (2, 2, 2, 0, 0, 0, 3, 3)]  # answers 3, 1, }
    texts = responses("so 3", "2", "1 + 2 = 3", "1", "3", "so", "3", "3")
    verdicts = task.verify(asked, texts)
    assert [v.reward for v in verdicts] == [1, 0, 1, 1, 0, 0, 0, 0]
    assert [v.status for v in verdicts] == ["ok"] * 6 + ["error"] * 2
    assert task.solution(asked[0], "so 3") == "so 3"


def test_another_verifier_by_name(task_of, monkeypatch):
    task = task_of(problems(3), verifier="operator:eq")  # the very same text
    asked = [task.train[i] for i in (0, 0, 1)]
    assert [v.reward for v in task.verify(asked, responses("1", "so 1", "2"))] == [1, 0, 1]
    monkeypatch.setattr("operator.later", lambda r, a: 1.0, raising=False)  # in this process alone
    missing = task_of(problems(3), verifier="operator:later")
    with pytest.raises(ValueError, match="'operator:later'"):
        missing.verify(asked, responses("1", "2", "3"))
