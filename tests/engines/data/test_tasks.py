"""Training problems: prompts, gold answers, what is dropped, epochs, rewards, one's own task."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import small_llama
from commands import invoke
from says import Says

from nemo_algos.engines.data import tasks
from nemo_algos.engines.data.schema import DataSection, Split
from nemo_algos.engines.data.tasks import MathProblems, Response
from nemo_algos.engines.local import manifest, tiny_policy
from nemo_algos.engines.local.hf import chat

PAGE = Path(__file__).parents[3] / "docs" / "local_engine.md"


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


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("She has 16 - 3 - 4 = 9 eggs.\n9 * 2 = <<9*2=18>>18\n#### 18", "18"),
        ("#### -1,234 ", "-1234"),
        ("#### 1,5", "1,5"),
        ("1,234", "1,234"),
        ("#### 1 #### 2", "2"),
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


@pytest.mark.parametrize(
    ("rows", "keys", "message"),
    [
        ([{"problm": "q", "answer": "1"}], {}, "row 1 'problem' problm"),
        (
            [{"question": "q", "answer": "1"}, {"question": "q"}],
            {"input_key": "question"},
            "row 2 'answer' question data.train.output_key",
        ),
        ([{"problem": "q", "answer": ""}], {}, "problem answer"),
    ],
)
def test_rows_that_cannot_be_used(tmp_path, rows, keys, message):
    path = jsonl(tmp_path / "train.jsonl", rows)
    with pytest.raises(ValueError) as raised:
        read(path, **keys)
    assert str(raised.value) == Says(f"{path} {message}") and "\n" not in str(raised.value)


@pytest.fixture
def task_of(tmp_path):
    """A function of (rows, validation rows, seed, **settings of `data`); closed afterwards."""
    made = []

    def make(rows, validation=None, seed=0, input_key="problem", **settings):
        data = {"task": "math", "prompt": "{problem}", **settings}
        train = str(jsonl(tmp_path / "train.jsonl", rows))
        data["train"] = {"data_path": train, "input_key": input_key}
        if validation is not None:
            data["validation"] = {"data_path": str(jsonl(tmp_path / "test.jsonl", validation))}
        made.append(MathProblems(DataSection(**data), seed))
        return made[-1]

    yield make
    for task in made:
        task.close()


SYSTEM = {"role": "system", "content": "be brief"}
USER = {"role": "user", "content": "1 + 1"}
GOLD = {"role": "assistant", "content": "2"}
THINK = {"role": "system", "content": "Think."}


@pytest.mark.parametrize(
    ("messages", "more", "before"),
    [
        ([USER], {"answer": "2"}, [THINK]),
        ([USER, GOLD], {}, [THINK]),
        ([SYSTEM, USER, GOLD], {}, [SYSTEM]),
        ([SYSTEM, USER, GOLD, USER], {"answer": "2"}, [SYSTEM, USER, GOLD]),
        ([USER, {**GOLD, "content": "a draft"}], {"answer": "2"}, [THINK]),
    ],
)
def test_a_conversation_is_asked_and_its_last_answer_is_the_gold(task_of, messages, more, before):
    """The config's system message stands where the row has none."""
    settings = {"prompt": "What is {problem}?", "answer_prefix": "{problem} ="}
    settings["system_prompt"] = "Think."
    row = {"messages": messages, **more}
    task = task_of([row], input_key="messages", **settings)
    (example,) = task.train
    assert example.answer == "2" and example.row == row
    said = {"role": "user", "content": "What is 1 + 1?"}
    assert task.prompt(example) == [*before, said] and task.prefix(example) == "1 + 1 ="


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": [SYSTEM], "answer": "2"}, "row 1 user"),
        ({"messages": [], "answer": "2"}, "row 1 user"),
        ({"messages": [{"role": "tool", "content": "x"}], "answer": "2"}, "row 1 0 role list"),
        ({"messages": [{"role": "user"}], "answer": "2"}, "row 1 0 content list"),
        ({"messages": ["hello"], "answer": "2"}, "row 1 0 list"),
        ({"messages": [USER]}, "row 1 'answer' data.train.output_key"),
    ],
)
def test_what_is_no_conversation(task_of, row, message):
    with pytest.raises(ValueError) as raised:
        task_of([row], input_key="messages")
    assert str(raised.value) == Says(message) and "\n" not in str(raised.value)


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


@pytest.fixture
def ending(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "ending.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(tiny_policy, "WARM_STEPS", 60)
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path))
    steps = ["grpo.max_num_steps=2", f"logger.log_dir={tmp_path / 'runs'}"]
    overrides = ["data.task=ending:Ending", *steps, "logger.tensorboard_enabled=false"]
    assert invoke("train", "grpo.yaml", *overrides).exit_code == 0
    return tmp_path / "runs" / "exp_001"


def test_it_trains_and_a_resume_asks_before_it_loads_it(ending):
    rows = [json.loads(line) for line in (ending / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and all(0 <= row["reward/mean"] < 1 for row in rows)
    assert max(row["reward/mean"] for row in rows) > 0
    assert (ending / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((ending / "summary.json").read_text())["after"] == {}  # nothing held out
    assert manifest.foreign(manifest.read(ending / "manifest.json")) == {
        "data.task": "ending:Ending"
    }
    refused = invoke("train", "--resume", ending)
    assert refused.exit_code == 2
    assert "data.task: ending:Ending " in refused.stderr
    assert invoke("train", "--resume", ending, "data.task=ending:Ending").exit_code == 0
