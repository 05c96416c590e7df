"""boxed, letter, yes_no: what is a final answer and what is running text."""
# ruff: noqa: RUF001

import pytest

from nemo_algos.engines.rewards.answers import boxed, letter, yes_no

MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{5}.", "5"),
        (r"\boxed{1} and \boxed{ \frac{1}{2} }", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        ("", None),
    ],
)
def test_last_balanced_box(text, content):
    assert boxed(text) == content


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{B}",
        r"\boxed{(B)}",
        r"\boxed{\textbf{(B)}\ 12}",
        r"\boxed{b. 42 m}",
        "Answer: B",
        "**Answer**: **B**",
        r"The answer is $\text{B}$",
        "The correct answer is option B, since 6 is even.",
        "The answer is B because 6 is even.",
        "Both are even.\nB",
        r"Answer: \(B\)",
        "Answer: `B`",
        "Answer: \u201cB\u201d",
        "Answer: \u2018B\u2019",
        "Answer: B, I think.",
        "The answer is **B**, not A.",
        "The correct option is B",
        "The correct choice is (B).",
        r"\boxed{\text{Option B}}",
        r"\boxed{\textit{B}}",
        "Both are even.\nB) 42",
        "Both are even.\n**B. Paris**",
        r"\boxed{\text{选项B}}",
        "答案：B",
        "答案：（B）",
        "答案是B。",
        "正确答案为 **B**",
        "故选B。",
        "因此选：B",
    ],
)
def test_letter_in_every_form(text):
    assert letter(text) == "B"


@pytest.mark.parametrize(
    "text",
    [
        "The answer is A good idea.",
        "The answer is B-flat.",
        "The answer is Bob.",
        "A) 1\nB) 2",
        "",
    ],
)
def test_letter_in_running_text_is_no_answer(text):
    assert letter(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "Answer: A/B/C/D",
        "Answer: A and B",
        "Answer: $A$ or $B$",
        "The answer is A or B",
        "Answer: B is wrong",
        r"\boxed{A.B.C.D}",
        "A or B",
        "A) 4, B) 5",
        r"\boxed{A}, \boxed{B}",
        r"$\boxed{A}$ and $\boxed{B}$",
        r"\boxed{A} \boxed{B}",
        r"\boxed{A}/\boxed{B}",
        r"\boxed{(A)(B)}",
        r"\boxed{A. 3 B. 4}",
        "<answer>A</answer> or <answer>B</answer>",
        "<answer>A B</answer>",
        "Answer: A B",
        "Answer: A. B. C.",
        "Answer: (A)-(D)",
        "Answer: A \u2013 D",
        "Answer: A (B)",
        "Answer: A and/or B",
        "Answer: A, maybe B",
        "Answer: A (possibly B)",
        "Answer: A?",
        "Answer: A isn't right",
        "Answer: \\boxed{A} or \\boxed{B}",
        "答案：A或B",
    ],
)
def test_undecided_is_no_answer(text):
    assert letter(text) is None
    assert letter(f"Answer: C\nIn truth: {text}" if "nswer" in text else text) is None


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("Answer: A\nC", "C"),
    ],
)
def test_last_one_counts(text, last):
    assert letter(text) == last


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{Yes}", "yes"),
        (r"\boxed{\text{no}}", "no"),
        ("**Final Answer**: Yes.", "yes"),
        ("Yes, it can be. So the answer is no.", "no"),
        ("it is even\nNo.", "no"),
        ("Answer: Yes it is", "yes"),
        ("It is even.\nYes!", "yes"),
        ("<answer>No</answer>", "no"),
        ("Answer: yes/no", None),
        ("Answer: yes (no)", None),
        ("Answer: yes?", None),
        ("yes/no", None),
        ("The answer is no more than 5.", None),
        ("Answer: yesterday", None),
    ],
)
def test_yes_no(text, answer):
    assert yes_no(text) == answer


PIECES = r"\boxed{,{,},\boxed ,\boxed{},\,answer is ,answer: (,Answer: B ,B,answer: option , "
PIECES += ",<answer>,correct option ,A) ,A or "


@pytest.mark.parametrize("piece", [*PIECES.split(","), "\n"])
def test_a_long_response_of_anything(piece):  # quadratic time would take minutes
    text = piece * (MEGABYTE // 4 // len(piece))
    assert boxed(text) == ("" if piece == r"\boxed{}" else None)
    assert letter(text) == ("B" if piece == "Answer: B " else None)
    assert yes_no(text + "\nyes") == "yes"
