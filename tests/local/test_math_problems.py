"""Training problems: files and their errors, what is dropped, epochs, rewards by the pool."""

import json
from collections import Counter

import pytest
import small_llama
import torch
from small_llama import WORDS

from nemo_algos.local.experience import Experience
from nemo_algos.local.math_problems import MathProblems, read_jsonl
from nemo_algos.local.schema import DataSection, Split


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def problems(count):
    return [{"problem": f"what is {i} + 1 ?", "answer": str(i + 1)} for i in range(count)]


def read(path, **keys):
    return read_jsonl(Split(data_path=str(path), **keys))


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
        ("#### -1,234 ", "-1,234"),
        ("18", "18"),
        ("#### 1 #### 2", "2"),
        (0.5, "0.5"),
        ("#### ", ""),
        ("", ""),
    ],
)
def test_of_a_gsm8k_answer_what_follows_the_hashes(tmp_path, answer, gold):
    path = jsonl(tmp_path / "a.jsonl", [{"question": "q", "solution": answer}])
    assert read(path, input_key="question", output_key="solution") == [("q", gold)]


def test_a_broken_line_is_named_by_its_number(tmp_path):
    lines = [json.dumps(p) for p in problems(30)]
    lines[16], lines[20] = '{"problem": "what", ', "also broken"
    path = tmp_path / "train.jsonl"
    message = error(path, "\n".join(lines))
    assert message.startswith(f"{path} line 17 is not JSON: ")
    lines[3:4] = ["", ""]  # a line more, blank ones count
    assert error(path, "\n".join(lines)).startswith(f"{path} line 18 is not JSON")


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        (
            '{"problm": "q", "answer": "1"}',
            {},
            "line 1 has no key 'problem' (did you mean problm?)",
        ),
        (
            '{"question": "q", "answer": "1"}\n{"question": "q"}',
            {"input_key": "question"},
            "line 2 has no key 'answer' (valid: question): set output_key",
        ),
        ("[1, 2]", {}, "line 1 is not a JSON object with the keys of a problem"),
        ("3", {}, "line 1 is not a JSON object"),
        ("", {}, "holds no problems: one JSON object per line is needed"),
        ("\n \n", {}, "holds no problems"),
        (None, {}, "No such file or directory"),
        (b"\xff\xfe", {}, "codec can't decode"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, text, keys, message):
    path = tmp_path / "train.jsonl"
    said = error(path, text, **keys)
    assert str(path) in said and message in said


@pytest.fixture
def task_of(tmp_path):
    """A function of (rows, validation rows, seed, **settings of `data`); closed afterwards."""
    made = []

    def make(rows, validation=None, seed=0, **settings):
        data = {"task": "math", "prompt": "{problem}", **settings}
        data["train"] = {"data_path": str(jsonl(tmp_path / "train.jsonl", rows))}
        if validation is not None:
            data["validation"] = {"data_path": str(jsonl(tmp_path / "test.jsonl", validation))}
        made.append(MathProblems(DataSection(**data), small_llama.tokenizer(), seed))
        return made[-1]

    yield make
    for task in made:
        task.close()


def text_of(task, problem):
    return task.tokenizer.decode(task.prompt(problem))


def test_the_prompt_is_the_chat_with_the_beginning_of_the_answer(task_of):
    task = task_of(problems(3), problems(2), prompt="so {problem}", answer_prefix="{problem} =")
    assert text_of(task, task.train[2]) == "user so what is 2 + 1 ? assistant what is 2 + 1 ? ="
    assert task.held_out(5) == task.validation and task.held_out(1) == task.validation[:1]
    assert task_of(problems(1)).held_out(5) == []


def test_empty_answers_and_long_prompts_are_dropped_and_counted(task_of):
    long = {"problem": "what is " + "1 + " * 20 + "1 ?", "answer": "21"}
    empty = {"problem": "what is 3 ?", "answer": "so 3\n#### "}
    rows = [*problems(4), long, empty, long]
    task = task_of(rows, [long, *problems(2)], max_input_seq_length=20)
    assert (len(task.train), len(task.validation), task.dropped) == (4, 2, 4)
    assert max(len(task.prompt(p)) for p in task.train) <= 20
    whole = task_of(rows)
    assert (len(whole.train), whole.dropped) == (6, 1)
    edge = len(whole.prompt(whole.train[0]))  # the limit itself is allowed
    assert len(task_of(problems(4), max_input_seq_length=edge).train) == 4
    with pytest.raises(ValueError, match=r"train\.jsonl.*max_input_seq_length=7 .*or has an empty"):
        task_of(problems(4), max_input_seq_length=edge - 1)


@pytest.mark.parametrize("number", [1, 3, 4, 10, 25])
def test_every_problem_once_an_epoch_and_another_order_the_next(task_of, number):
    task, n = task_of(problems(10)), 10
    asked = [p for step in range(60 // number) for p in task.problems(step, number)]
    epochs = [asked[i : i + n] for i in range(0, len(asked) - n + 1, n)]
    assert len(epochs) >= 5
    for epoch in epochs:
        assert Counter(p.question for p in epoch) == Counter(p.question for p in task.train)
    assert len({tuple(p.question for p in epoch) for epoch in epochs}) == len(epochs)


def test_a_seed_and_a_step_give_the_same_problems_whenever_asked(task_of):
    one, same, other = (task_of(problems(10), seed=seed) for seed in (1, 1, 2))
    straight = [one.problems(step, 7) for step in range(9)]
    assert [same.problems(step, 7) for step in reversed(range(9))][::-1] == straight
    assert [other.problems(step, 7) for step in range(9)] != straight
    assert straight[0] != one.train[:7]


def experience_of(task, of, texts):
    rows = [[WORDS.index(w) for w in text.split()] for text in texts]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
    zeros = torch.zeros(mask.shape)
    shown = torch.ones(max(of) + 1, 1)
    return Experience(shown, shown.bool(), torch.tensor(of), tokens, mask, zeros, zeros, zeros)


def test_rewards_by_math_verify_in_the_pool(task_of):
    bad = {"problem": "what", "answer": "}"}  # a gold answer that nothing can equal
    task = task_of([*problems(3), bad])
    asked = [task.train[i] for i in (2, 0, 3)]  # answers 3, 1, }
    texts = ["so 3 <eos>", "2 <eos>", "1 + 2 = 3", "1 <eos>", "3 <eos>", "so", "3 <eos>", "3"]
    of = [0, 0, 0, 1, 1, 1, 2, 2]
    experience = experience_of(task, of, texts)
    rewards = task.rewards(asked, experience)
    assert rewards.tolist() == [1, 0, 1, 1, 0, 0, 0, 0] and rewards.dtype == torch.float64
    assert task.unverified == 2
    assert task.solutions(asked, experience) == ["so 3", None, "1 + 2 = 3", "1", *[None] * 4]
    assert task.rewards(asked[:2], experience_of(task, [0, 1], ["3", "1"])).tolist() == [1, 1]
    assert task.unverified == 0  # of the last batch alone


def test_another_verifier_by_name(task_of):
    task = task_of(problems(3), verifier="operator:eq")  # the very same text
    experience = experience_of(task, [0, 0, 1], ["1 <eos>", "so 1", "2 <eos>"])
    assert task.rewards(task.train[:2], experience).tolist() == [1, 0, 1]
    missing = task_of(problems(3), verifier="operator:nothing")
    with pytest.raises(ValueError, match="'operator:nothing' did not load"):
        missing.rewards(task.train, experience)
