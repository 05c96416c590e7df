"""pass@k, UCC@k and lengths of sampled responses, by hand."""

import pytest
from runner import measures

from nemo_algos.engines.local.evaluation import Sampled


def test_by_hand():
    # of 4: a twice, b once; of 4: c once
    solutions = [["a", "a", "b", None], [None, "c", None, None]]
    found = measures(Sampled(solutions, [[1, 2, 3, 9], [7, 6, 7, 7]]))
    assert found == pytest.approx(
        {
            "pass@1": (3 / 4 + 1 / 4) / 2,
            "pass@2": (1 + 1 / 2) / 2,
            "pass@4": 1,
            "UCC@1": (2 / 4 + 1 / 4 + 1 / 4) / 2,
            "UCC@2": (1 - 1 / 6 + 1 / 2 + 1 / 2) / 2,
            "UCC@4": (2 + 1) / 2,
            "length": 42 / 8,
            "length of right": (1 + 2 + 3 + 6) / 4,
        }
    )


def test_samples_that_are_no_power_of_two_and_none_right():
    found = measures(Sampled([[None] * 5], [[3] * 5]))
    assert [k for k in found if k.startswith("pass")] == ["pass@1", "pass@2", "pass@4"]
    assert found["UCC@4"] == found["pass@4"] == 0 and "length of right" not in found
