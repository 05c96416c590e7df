"""The cases that frameworks are run on: each says something, and our own numbers pass."""

import numpy as np
import pytest
from conformance import COMPARED, build_cases, cell, judge, run
from traps import traps

from nemo_algos.algorithms.golden.verify import error

CASES = build_cases()


def test_every_method_is_in_every_trap():
    got = [(case["method"], case["trap"]) for case in CASES]
    assert got == [(method, trap) for method in COMPARED for trap in traps()]
    for case in CASES:
        assert np.abs(case["expected"]["grad"]).max() > 1e-5, (case["method"], case["trap"])
    losses = {c["method"]: c["expected"]["loss"] for c in CASES if c["trap"] == "holes"}
    assert len({round(loss, 8) for loss in losses.values()}) > 0.8 * len(COMPARED)


def test_bounds_bite_on_both_sides():
    bounded = {case["method"] for case in CASES if "low" in case["signals"]}
    assert {"etr", "grpo", "gspo", "gmpo", "cispo"} <= bounded
    for method in bounded:
        shares = [case["expected"] for case in CASES if case["method"] == method]
        for side in ("clip/positive_above", "clip/negative_below"):
            found = [share[side] for share in shares if side in share]  # A of pass@k is positive
            assert found or method == "pass_at_k", (method, side)
            assert max(found, default=1) > 0, (method, side)


def test_the_verdicts():
    """GRPO's expected numbers as the answer; in pieces a worker's wrong share is seen."""

    def answer(method, params, inputs, signals, counts):
        if method != "grpo":
            raise NotImplementedError("grpo is all that it has")
        if "rewards" not in inputs:
            return {"loss": 0.5, "grad": inputs["mask"] * 0.0}
        whole = next(c for c in CASES if c["method"] == "grpo" and c["trap"] == "holes")
        return {"loss": whole["expected"]["loss"], "grad": whole["expected"]["grad"]}

    cases = [case for case in CASES if case["method"] in ("grpo", "etr")]
    rows = {(row["method"], row["trap"]): row for row in run(answer, cases, 1e-8)}
    assert rows["grpo", "holes"]["verdict"] == "pass"
    assert rows["etr", "holes"]["detail"] == "grpo is all that it has"
    assert cell(rows["grpo", "micro_batches"]) == "loss 2e+00"
    assert judge(lambda *_: {}["loss"], cases[0], 1e-8) == ("fails", "KeyError: 'loss'")


def test_a_nan_is_no_agreement():
    mask = np.ones((1, 2), dtype=bool)
    assert error([[0.0, float("nan")]], [[0.0, 1.0]], mask) == 1e308
    assert error([[0.0, float("nan")]], [[0.0, 1.0]], np.array([[True, False]])) == 0
    assert error([2.0], [[1.0, 4.0]], mask) == pytest.approx(1)
    assert error([0.0], [None], mask) == 0
