"""Rows of the mathematical benchmarks in each of their formats: prompt, gold, what is counted."""

import json

import pytest
from says import Says

from nemo_algos.lab.evals.benchmarks import load

ASK = "\nPlease reason step by step, and put your final answer within \\boxed{}."


@pytest.fixture
def read(tmp_path):
    """read(name, rows, ...) -> Loaded, through a JSONL file."""

    def read(name, rows, **options):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return load(name, str(path), **options)

    return read


def golds(loaded):
    return [problem.answer for problem in loaded.problems]


def test_math500(read):
    row = {
        "problem": "Add $1$ and $1$, as {2}.",
        "solution": "It is $\\boxed{3}$.",
        "answer": "\\frac{4}{2}",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "test/algebra/1.json",
    }
    loaded = read("math500", [row])
    (problem,) = loaded.problems
    assert problem.id == "test/algebra/1.json"
    assert problem.prompt == "Add $1$ and $1$, as {2}." + ASK
    assert problem.answer == "\\frac{4}{2}"  # the key, not the solution's box
    assert problem.info == {"level": "1", "subject": "Algebra"}
    assert loaded.counts == {}


def test_golds_that_carry_a_unit_or_a_percent_are_counted_and_kept(read):
    answers = ["90^\\circ", "15\\mbox{ cm}^2", "\\text{even}", "50\\%", "3"]
    rows = [{"problem": f"{i}", "answer": a, "id": i} for i, a in enumerate(answers)]
    loaded = read("math500", rows)
    assert golds(loaded) == answers
    assert loaded.counts == {"golds with a unit": 2, "percent golds": 1}


def test_amc23_floats_and_a_half(read):
    rows = [{"id": i, "problem": f"{i}", "answer": a} for i, a in enumerate([27.0, -3.0, 1.5])]
    rows.append({"id": 3, "question": "3", "answer": "36.0"})  # as text, in a CSV file
    loaded = read("amc23", rows)
    assert golds(loaded) == ["27", "-3", "1.5", "36"]
    assert loaded.counts == {"float golds": 4}
    assert [problem.id for problem in loaded.problems] == ["0", "1", "2", "3"]


def test_aime_leading_zeros_and_integers(read):
    rows = [{"id": f"{i}", "problem": f"{i}", "answer": a} for i, a in enumerate(["033", 70, "0"])]
    loaded = read("aime24", rows)
    assert golds(loaded) == ["33", "70", "0"]
    assert loaded.counts == {"golds with leading zeros": 1}
    binary = read("aime25", [{"id": "a", "problem": "p", "answer": "0.5"}])
    assert golds(binary) == ["0.5"] and binary.counts == {}


def test_minerva_has_the_gold_in_the_last_box_of_its_solution_or_as_answer(read):
    solution = "First \\boxed{1}, then $\\boxed{\\frac{a}{b^{2}}}$ and \\boxed{unclosed"
    rows = [
        {"problem": "p", "solution": solution, "type": "Physics", "idx": 4},
        {"question": "q", "answer": "4.5e33"},  # the hub's
    ]
    loaded = read("minerva_math", rows)
    assert golds(loaded) == ["\\frac{a}{b^{2}}", "4.5e33"]
    assert [p.id for p in loaded.problems] == ["4", "1"]
    assert loaded.counts == {"golds from the solution's last box": 1, "ids from the row number": 1}


def test_olympiadbench_lists_units_several_answers_and_a_tolerance(read):
    def row(number, final, **more):
        plain = {"is_multiple_answer": "False", "unit": None, "error": None, "context": None}
        return {"id": number, "question": f"q{number}", "final_answer": final} | plain | more

    loaded = read(
        "olympiadbench",
        [
            row(1, ["$\\frac{1}{2}$"]),
            row(2, "['$69$,$84$']", is_multiple_answer=True),
            row(3, ["$1$", "$-2$"], is_multiple_answer=True, context="Given: x."),
            row(4, ["166"], unit="$cm^2$"),
            row(5, ["4.2"], unit="%", error="1e-1"),
        ],
    )
    assert golds(loaded) == ["\\frac{1}{2}", "69,84", "1, -2", "166", "4.2\\%"]
    assert loaded.counts == {
        "list golds": 5,
        "several answers": 2,
        "units outside the gold": 2,
        "percent golds": 1,
        "error tolerances not used": 1,
    }
    several = " If there are several answers, put all of them in one box, separated by commas."
    prompts = [problem.prompt for problem in loaded.problems]
    assert prompts[0] == "q1" + ASK
    assert prompts[2] == "Given: x.\nq3" + ASK + several
    assert prompts[3] == "q4" + ASK + " Give the answer in $cm^2$, without the unit."
    assert loaded.problems[4].info == {"unit": "%", "error": "1e-1"}


def test_an_interval_is_no_list(read):
    rows = [{"id": i, "problem": f"{i}", "answer": a} for i, a in enumerate(["[1, 2]", "[a, b)"])]
    loaded = read("math500", rows)
    assert golds(loaded) == ["[1, 2]", "[a, b)"] and loaded.counts == {}


def test_gsm8k_after_the_hashes_without_commas(read):
    rows = [
        {"question": "a", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"},
        {"question": "b", "answer": "#### 9\n#### -1,450,000"},
        {"question": "c", "answer": "#### 1,2"},
    ]
    loaded = read("gsm8k", rows)
    assert golds(loaded) == ["2", "-1450000", "1,2"]
    assert loaded.counts == {
        "golds after ####": 3,
        "golds with thousands commas": 1,
        "ids from the row number": 3,
    }


def test_a_file_of_ones_own(read):
    rows = [
        {"problem": "a", "answer": " $x^2$ "},
        {"question": "b", "answer": 3, "id": "mine"},
        {"problem": "c", "solution": "so \\boxed{1,2}"},
        {"problem": "b", "answer": "4"},
    ]
    loaded = read("math", rows)
    assert golds(loaded) == ["x^2", "3", "1,2", "4"]
    assert [p.id for p in loaded.problems] == ["0", "mine", "2", "3"]
    assert loaded.counts == {
        "golds in dollar signs": 1,
        "golds from the solution's last box": 1,
        "ids from the row number": 3,
        "problems with the prompt of another": 1,
    }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem": "p", "solution": "no box"}, "2 answer solution"),
        ({"problem": "p", "answer": "", "level": 1}, "2 'solution'"),
        ({"problm": "p", "answer": "1"}, "'Question' problm answer"),
        ({"problem": "p", "answer": "#### "}, "2 empty"),
        ({"problem": "p", "answer": "1", "id": "0"}, "1 '0'"),
        ({"problem": "p", "answer": float("nan")}, "2 nan"),
        ({"problem": "p", "answer": float("-inf")}, "2 -inf"),  # as JSON reads -1e400
        ({"problem": "p", "answer": ["1", float("inf")]}, "2 inf"),
        ({"problem": "p", "answer": "NaN"}, "2 NaN"),
    ],
)
def test_rows_that_are_refused(read, row, message):
    with pytest.raises(ValueError) as raised:
        read("math", [{"problem": "first", "answer": "1"}, row])
    assert str(raised.value) == Says(message)


def test_a_limit_takes_the_first_and_counts_all(read):
    rows = [{"problem": f"{i}", "answer": float(i), "id": i} for i in range(5)]
    loaded = read("amc23", rows, limit=2)
    assert golds(loaded) == ["0", "1"] and loaded.counts == {"float golds": 5}
    whole = read("amc23", rows)
    assert loaded.source == whole.source
    with pytest.raises(ValueError, match=r"limit .*1.* 0"):
        read("amc23", rows, limit=0)
