"""The golden file: float64 numbers made by an independent program from the papers' equations."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_algos.algorithms.golden.verify import compute, errors_of, read
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.algorithms.record import ClipParams

GOLDEN = read(Path(__file__).parents[2] / "golden" / "public.json.gz")


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_case_agrees_to_1e_12(case):
    for error in errors_of(case):
        assert error.error <= 1e-12, error


def test_a_wrong_number_is_seen():
    case = copy.deepcopy(GOLDEN["cases"][0])
    case["expected"]["loss"] += 1e-5
    assert {e.quantity for e in errors_of(case) if e.error > 1e-6} == {"loss"}


class Penalised(ClipParams):
    kl_coef: float = 1.0


MINE = replace(METHODS["grpo"], name="mine", params=Penalised)


def test_kl_coef_is_the_penalty_unless_the_method_has_one():
    mine = f"{__name__}:MINE"
    inputs = GOLDEN["cases"][0]["inputs"]
    plain, own, penalty = (
        compute(name, params, inputs)["loss"]
        for name, params in ((mine, {}), (mine, {"kl_coef": 0.5}), ("grpo", {"kl_coef": 0.5}))
    )
    assert own == plain and penalty > plain
