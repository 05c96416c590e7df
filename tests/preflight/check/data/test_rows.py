"""Rows, their lengths and their repetitions, of data sets that are lists."""

import json

import pytest

from nemo_algos.preflight.check.data import dataset_checks, datasets, rows, verdict
from nemo_algos.preflight.check.data.rows import Row
from nemo_algos.preflight.check.data.verdict import Stage, list_rows, share


class Ids(list):
    """Token ids as a tensor gives them."""

    def tolist(self):
        return list(self)


class DataSet:
    """As NeMo-RL's AllTaskProcessedDataset: entries, and data of them; the limit is 5 tokens."""

    def __init__(self, *entries):
        self.dataset = entries

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        said = self.dataset[index]["messages"]
        length = len(said[0]["content"])
        ids = Ids(range(length if length < 5 else 4))
        return {
            "message_log": [{"role": "user", "content": "", "token_ids": ids}],
            "extra_env_info": {"ground_truth": said[1]["content"]},
            "length": length,
            "loss_multiplier": float(length < 5),
        }


def entry(problem, answer, *roles):
    names = roles or ("user", "assistant")
    texts = (problem, answer, "?")[: len(names)]
    messages = [{"role": r, "content": c} for r, c in zip(names, texts, strict=True)]
    return {"messages": messages, "task_name": "sums"}


def test_a_row_as_training_gets_it():
    (row,) = rows.read([DataSet(entry("1+1", "2"))], [7])
    assert row == Row(7, "sums", "1+1", "2", 3, False, [0, 1, 2], "")


def test_what_reaches_the_limit_is_masked():
    _, long = rows.read([DataSet(entry("1+1", "2"), entry("1+1+1", "3"))], [1, 2])
    assert (long.length, long.masked, long.tokens) == (5, True, [])


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (entry("1+1", ""), "answer is empty"),
        (entry(" ", "2"), "problem is empty"),
        (entry("1+1", None), "answer is missing"),
        (entry("1+1", 2), "a int"),
        (entry("1+1", "2", "user"), "messages are user"),
        (entry("be brief", "1+1", "system", "user"), "messages are system, user"),
        ({"messages": [], "task_name": "sums"}, "messages are none"),
        ({"task_name": "sums"}, "KeyError"),
    ],
)
def test_a_bad_row_has_a_reason(bad, word):
    good, faulty = rows.read([DataSet(entry("1", "1")), DataSet(bad)], [1, 2])
    assert not good.fault and word in faulty.fault and faulty.number == 2


def test_rows_that_are_split_off_are_told_from_those_of_a_file(tmp_path):
    """NeMo-RL validates on a part of training's file, beside validation's own."""
    parts = [DataSet(*[entry("1", "1")] * 9)]
    own = DataSet(*[entry("2", "2")] * 3)
    numbers = {"train": [*range(1, 10)], "validation": [10, 1, 2]}
    loaded = datasets.Loaded(parts, own, numbers, {}, {}, [], 1)
    for name in numbers:
        dataset_checks._split(Stage(tmp_path, "data"), {"data": {"train": {}}}, loaded, name)
    train, validation = (v.message for v in verdict.read(tmp_path))
    assert "9" in train and "without 1" in train
    assert "3" in validation and "with 1" in validation


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ('{"problem": "1", "answer": 2}', "row 2 has 2 under 'answer'"),
        ('{"problem": "1"}', "row 2 has no key 'answer'"),
        ('{"problem": "1", "answer"', "row 2 is no JSON"),
        ("[1]", "row 2 is a list"),
        ('{"messages": []}', ""),
        ("", ""),
    ],
)
def test_lines_that_no_reader_takes(line, word, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "1", "answer": "1"}\n' + line + "\n")
    section = {"data_path": str(path), "input_key": "problem", "output_key": "answer"}
    found = rows.faults_in_file(section)
    assert (len(found) == 1 and found[0].startswith(word)) if word else found == []


def of_lengths(*values):
    return [Row(n, "sums", "?", "1", v, v >= 100, []) for n, v in enumerate(values, 1)]


CONFIG = {"data": {"max_input_seq_length": 100}, "policy": {"max_total_sequence_length": 200,
          "generation": {"max_new_tokens": 120}}}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([10] * 100, []),
        ([10] * 99 + [100], [("warning", "data.max_input_seq_length")]),
        ([10] * 90 + [100] * 10, [("failed", "data.max_input_seq_length")]),
        ([80] * 100, []),
        ([10] * 99 + [81], []),
        ([10] * 98 + [81] * 2, [("warning", "policy.max_total_sequence_length")]),
    ],
)
def test_lengths_against_the_limits(values, expected, tmp_path):
    rows.judge_lengths(Stage(tmp_path, "data"), of_lengths(*values), CONFIG, "train", real=True)
    *found, last = verdict.read(tmp_path)
    assert [(v.outcome, v.key) for v in found] == expected
    assert last.outcome == "passed" and last.details["max"] == max(values)


def test_lengths_of_other_rows_are_not_judged(tmp_path):
    rows.judge_lengths(Stage(tmp_path, "data"), of_lengths(*[300] * 9), CONFIG, "train", real=False)
    assert [v.outcome for v in verdict.read(tmp_path)] == ["unchecked"]


def test_a_prompt_that_nothing_masks_leaves_no_token(tmp_path):
    row = Row(3, "sums", "?", "1", 200, False, [1] * 200)
    rows.judge_lengths(Stage(tmp_path, "data"), [row], CONFIG, "train", real=True)
    first = verdict.read(tmp_path)[0]
    assert (first.outcome, first.key) == ("failed", "policy.max_total_sequence_length")


def test_the_histogram_counts_every_row():
    found = rows.length_summary([0, 1, 5, 5, 99])
    assert (found["p50"], found["p99"], found["max"]) == (5, 99, 99)
    assert sum(count for _, count in found["histogram"]) == 5
    assert found["histogram"][0] == [0, 2] and found["histogram"][1] == [5, 2]
    assert rows.length_summary([0])["histogram"] == [[0, 1]]


def asking(*problems, answer=""):
    texts = [(p, answer or str(sum(map(ord, p.strip())) % 7)) for p in problems]
    return [Row(n, "sums", p, a) for n, (p, a) in enumerate(texts, 1)]


@pytest.mark.parametrize(
    ("train", "validation", "expected"),
    [
        (["a", "b"], ["c"], []),
        (["a", "b", "a  ", "c"], [], [("warning", "data.train", "rows 1, 3")]),
        ([*map(str, range(98)), "7", "8"], [], [("warning", "data.train", "rows 8, 99")]),
        ([*map(str, range(99)), "7"], [], []),
        (["a", "b"], ["b", "c"], [("failed", "data.validation", "row 1 ")]),
        (["a"], ["a", *map(str, range(30))], [("warning", "data.validation", "row 1 ")]),
    ],
)
def test_repetitions(train, validation, expected, tmp_path):
    dataset_checks.judge_together(Stage(tmp_path, "data"), asking(*train), asking(*validation))
    found = verdict.read(tmp_path)
    assert [(v.outcome, v.key) for v in found] == [e[:2] for e in expected]
    assert all(e[2] in v.message for v, e in zip(found, expected, strict=True))


def word_problems(count, first=0):
    """Healthy rows, as GSM8K has them: many answers occur several times."""
    who = ("Ada", "Ben", "Cleo", "Dan", "Eve")
    numbers = range(first, first + count)
    texts = [
        f"{who[n % 5]} buys {n + 3} pens for {n % 7 + 2} euros each and loses {n % 4}. "
        f"How many euros are spent?"
        for n in numbers
    ]
    return [Row(n + 1, "sums", t, str((n + 3) * (n % 7 + 2) % 90)) for n, t in enumerate(texts)]


def with_answers(rows, answers):
    return [row._replace(answer=a) for row, a in zip(rows, answers, strict=True)]


def with_problems(rows, change):
    return [row._replace(problem=change(row)) for row in rows]


WHOLE = word_problems(60)
PLANTED = {  # training, validation, outcomes and keys, a word of the message
    "healthy": (WHOLE, word_problems(20, 500), [], ""),
    "leaked in lower case": (
        WHOLE,
        with_problems(WHOLE[:20], lambda r: r.problem.lower().replace("?", " ?")),
        [("failed", "data.validation")],
        "memory",
    ),
    "repeated with NBSP": (
        [*WHOLE, *with_problems(WHOLE[:20], lambda r: r.problem.replace(" ", "\u00a0"))],
        [],
        [("warning", "data.train")],
        "20 of 80",
    ),
    "repeated with zero-width spaces": (
        [*WHOLE, *with_problems(WHOLE[:20], lambda r: r.problem.replace(" ", " \u200b"))],
        [],
        [("warning", "data.train")],
        "20 of 80",
    ),
    "numbered": (
        [WHOLE[0]._replace(number=n, problem=f"{n}. {WHOLE[0].problem}") for n in range(1, 31)],
        [],
        [("warning", "data.train"), ("warning", "data.train")],
        "30 times",
    ),
    "ids": (
        with_answers(WHOLE, map(str, range(1000, 1060))),
        [],
        [("warning", "data.train")],
        "output_key",
    ),
    "one answer": (with_answers(WHOLE, ["42"] * 60), [], [("warning", "data.train")], "'42'"),
    "contradicting": (
        [*WHOLE, WHOLE[7]._replace(number=61, answer="-1")],
        [],
        [("warning", "data.train")],
        "rows 8, 61",
    ),
    "contradicting often": (
        [*WHOLE, *with_answers(WHOLE[:20], ["-1"] * 20)],
        [],
        [("failed", "data.train")],
        "contradict",
    ),
    "one answer in two forms": (
        [*WHOLE, WHOLE[7]._replace(number=61, answer=f"{WHOLE[7].answer}.0")],
        [],
        [("warning", "data.train")],
        "repetitions",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_rows_beside_each_other(name, tmp_path):
    train, validation, expected, word = PLANTED[name]
    dataset_checks.judge_together(Stage(tmp_path, "data"), train, validation)
    found = verdict.read(tmp_path)
    assert [(v.outcome, v.key) for v in found] == expected
    assert not found or word in found[0].message


@pytest.mark.parametrize(
    ("train", "validation", "warned"),
    [
        ("She has {} apples and eats 2", "He has {} pears and eats 2", False),
        ("She has {} apples and eats 2", "Дима нашёл {} яблок и ещё 2", True),
        ("她有{}个苹果吃了两个", "他有{}个梨子吃了两个", False),
        ("她有{}个苹果吃了两个", "She has {} apples and eats 2", True),
    ],
)
def test_validation_in_other_words(train, validation, warned, tmp_path):
    pairs = (range(60), range(100, 160))
    texts = [[t.format(n) for n in p] for t, p in zip((train, validation), pairs, strict=True)]
    dataset_checks.judge_together(
        Stage(tmp_path, "data"), *(asking(*problems) for problems in texts)
    )
    assert [(v.outcome, v.key) for v in verdict.read(tmp_path)] == (
        [("warning", "data.validation")] if warned else []
    )


@pytest.mark.parametrize(
    ("problem", "answer", "warned"),
    [
        ("What is {} + 1? Answer: 42.", "42", True),
        ("What is {} + 420?", "42", False),
        ("A and B and {}?", "B", False),
        ("{}", "What is 6 * 7?", True),
        ("{}", '{"tests": [1, 2, 3]}', False),
    ],
)
def test_answers_that_no_policy_need_find(problem, answer, warned, tmp_path):
    train = asking(*(problem.format(n) for n in range(100, 115)), answer=answer)
    dataset_checks.judge_together(Stage(tmp_path, "data"), train, [])
    found = [(v.outcome, v.key) for v in verdict.read(tmp_path)]
    assert found == ([("warning", "data.train")] if warned else [])


@pytest.mark.parametrize(
    ("answers", "warned"),
    [
        ([n % 3 for n in range(200)], True),
        ([0 if n % 5 else n for n in range(200)], True),
        (["no" if n % 3 else "yes" for n in range(200)], True),
        (["ABCD"[n % 4] for n in range(200)], False),
        (["no" if n % 2 else "yes" for n in range(200)], False),
        ([n * 7 % 100 for n in range(200)], False),
    ],
)
def test_few_distinct_answers(answers, warned, tmp_path):
    train = [Row(i, "t", f"What is {i} and x?", str(a)) for i, a in enumerate(answers, 1000)]
    dataset_checks.judge_together(Stage(tmp_path, "data"), train, [])
    assert [v.key for v in verdict.read(tmp_path)] == ["data.train"] * warned


@pytest.mark.parametrize(("share", "warned"), [(0.1, True), (0.4, True), (0.02, False)])
def test_an_answer_in_some_of_the_problems(share, warned, tmp_path):
    """Of GSM8K's and MATH's problems 3 % have theirs, by chance."""
    answers = [str(1000 + n * 37 % 509) for n in range(500)]
    hints = [f" Hint: {a}." if n < share * 500 else "" for n, a in enumerate(answers)]
    train = [Row(n, "t", f"What is {n}x?{h}", answers[n]) for n, h in enumerate(hints)]
    dataset_checks.judge_together(Stage(tmp_path, "data"), train, [])
    assert [v.key for v in verdict.read(tmp_path)] == ["data.train"] * warned


def test_validation_in_another_order_of_words(tmp_path):
    text = "A farmer has {} cows and {} sheep. How many animals has the farmer?"
    moved = "How many animals has the farmer? A farmer has {1} sheep and {0} cows."
    train = [Row(n, "t", text.format(n, n + 5), str(2 * n + 5)) for n in reversed(range(50))]
    train = [row._replace(number=50 - row.number) for row in train]
    validation = [Row(n, "t", moved.format(n, n + 5), str(2 * n + 5)) for n in range(10)]
    others = [Row(n, "t", moved.format(n, n + 9), str(2 * n + 9)) for n in range(10)]
    dataset_checks.judge_together(Stage(tmp_path, "data"), train, others)
    assert verdict.read(tmp_path) == []
    dataset_checks.judge_together(Stage(tmp_path, "data"), train, validation)
    assert [v.key for v in verdict.read(tmp_path)] == ["data.validation"]


def test_rows_that_stand_in(tmp_path):
    path = datasets.stand_in(tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == datasets.SUMS
    for line in lines:
        a, b = (int(w.strip("?")) for w in line["problem"].split() if w.strip("?").isdigit())
        assert line["answer"] == str(a + b)
    own = tmp_path / "own.jsonl"
    own.write_text('{"problem": "1", "answer": "1"}\n')
    assert datasets.stand_in(tmp_path, str(own)).read_text() == own.read_text()


def test_paths_are_of_this_folder_or_of_nemo_rl(tmp_path, monkeypatch):
    (tmp_path / "there" / "examples").mkdir(parents=True)
    (tmp_path / "there" / "examples" / "p.txt").write_text("{}")
    (tmp_path / "own.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    section = {"data_path": "own.jsonl", "prompt_file": "examples/p.txt"}
    found = datasets.here({"train": [section], "default": section}, tmp_path / "there")
    there = str(tmp_path / "there" / "examples" / "p.txt")
    assert found["default"] == {"data_path": "own.jsonl", "prompt_file": there}
    assert found["train"] == [found["default"]]


def test_how_rows_are_named():
    assert list_rows([7312]) == "row 7,312"
    assert list_rows([1, 2, 3, 4, 5, 6, 7]) == "rows 1, 2, 3, 4, 5 and 2 more"
    assert share(1, 8) == "1 of 8 (12.5 %)"
