"""verify_math on the formats of formats.py: what surrounds an answer neither costs nor pays."""

import pytest
from formats import FORMATS, GOLDS, TIED, written

from nemo_algos.engines.rewards.math import verify_math
from nemo_algos.engines.rewards.math.verifier import without_markup

GOLDS_OF = {form: [GOLDS[0], (GOLDS * 3)[i % 65]] for i, form in enumerate(FORMATS)}


@pytest.mark.parametrize(("gold", "right", "wrong"), GOLDS)
def test_a_right_spelling_earns_and_a_wrong_one_does_not(gold, right, wrong):
    assert verify_math(written("BOX", right), gold) == 1
    assert verify_math(written("BOX", gold), gold) == 1
    assert verify_math(written("BOX", wrong), gold) == 0


@pytest.mark.parametrize("form", FORMATS)
def test_a_format_pays_right_answers_alone(form):
    for gold, right, wrong in GOLDS_OF[form]:
        assert verify_math(written(form, right), gold) == 1
        assert verify_math(written(form, wrong), gold) == 0


@pytest.mark.parametrize("form", TIED)
def test_a_box_that_is_a_part_of_more_is_no_answer(form):
    for answer in ("42", r"\frac{3}{4}", "2.5"):
        assert verify_math(written(form, answer), answer) == 0


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        (r"**\boxed{1}**, **\boxed{2}**", r"\boxed{1}, \boxed{2}"),
        (r"**x = $\boxed{1*2}$**", r"x = $\boxed{1*2}$"),
        (r"$a*b*\boxed{1}*c$", r"$a*b*\boxed{1}*c$"),
        (r"`x` **y** \(p_1\) _\boxed{1}_", r"x y \(p_1\) \boxed{1}"),
        ("no box: **1**", "no box: **1**"),
        (r"\$5 or \$6: *\boxed{5}*", r"\$5 or \$6: \boxed{5}"),
        ("$5 or *$6*:\n*\\boxed{5}*", "$5 or *$6*:\n\\boxed{5}"),
        ("\ue000 **\\boxed{\ue000}**", "  \\boxed{\ue000}"),
    ],
)
def test_without_markup(text, bare):
    assert without_markup(text) == bare


@pytest.mark.parametrize(
    "filler", ["*", "**", "_", "`", "* ", "$", "\\[", "$$", "- ", "> *", "*a*"]
)
def test_markup_of_a_megabyte_is_read_in_linear_time(filler):
    text = filler * (10**6 // len(filler)) + r"**\boxed{42}**"
    assert verify_math(text, "43") == 0


def test_two_bold_boxes_are_one_answer():
    assert verify_math(r"**\boxed{1}** and **\boxed{2}**", "1, 2") == 1
    assert verify_math(r"**\boxed{1}** and **\boxed{2}**", "2") == 0
