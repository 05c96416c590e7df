"""The golden file: float64 numbers made by an independent program from the papers' equations."""

import copy
from pathlib import Path

import pytest

from nemo_algos.verify import errors_of, read

GOLDEN = read(Path(__file__).parent / "golden" / "public.json.gz")


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_case_agrees_to_1e_12(case):
    for error in errors_of(case):
        assert error.error <= 1e-12, error


def test_a_wrong_number_is_seen():
    case = copy.deepcopy(GOLDEN["cases"][0])
    case["expected"]["loss"] += 1e-5
    assert {e.quantity for e in errors_of(case) if e.error > 1e-6} == {"loss"}
