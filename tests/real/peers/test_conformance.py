"""The tables of conformance.md are what a run gives now; the verdicts on the cases."""

import conformance_page
import pytest
from conformance import build_cases, cell, judge, run
from conformance_page import PAGE, kinds_of, page, put

CASES = build_cases(("grpo", "etr"))


def test_the_verdicts():
    """GRPO's expected numbers as the answer; in pieces a worker's wrong share is seen."""

    def answer(method, params, inputs, signals, counts):
        if method != "grpo":
            raise NotImplementedError("grpo is all that it has")
        if "rewards" not in inputs:
            return {"loss": 0.5, "grad": inputs["mask"] * 0.0}
        whole = next(c for c in CASES if c["method"] == "grpo" and c["trap"] == "holes")
        return {"loss": whole["expected"]["loss"], "grad": whole["expected"]["grad"]}

    rows = {}
    for row in run(answer, CASES, 1e-8):
        rows.setdefault((row["method"], row["trap"]), row)  # the case without a KL penalty is first
    assert rows["grpo", "holes"]["verdict"] == "pass"
    assert rows["grpo", "plain"]["verdict"] == "departs"
    assert rows["etr", "holes"]["detail"] == "grpo is all that it has"
    assert cell(rows["grpo", "micro_batches"]) == "loss 2e+00"
    assert judge(lambda *_: {}["loss"], CASES[0], 1e-8) == ("fails", "KeyError: 'loss'")


def test_tables_are_current():
    text = PAGE.read_text()
    assert text == put(text, page()), "make conformance writes them"


def test_a_departure_that_nothing_explains_is_an_error():
    row = {"method": "grpo", "trap": "plain", "kl": None}
    row |= {"verdict": "departs", "detail": {"loss": 0.5}}
    with pytest.raises(
        AssertionError, match=r"\('verl', 'grpo', 'plain'\): loss 5e-01 is not expl"
    ):
        kinds_of("verl", row)


def test_a_kind_that_is_met_nowhere_is_an_error(monkeypatch):
    met = conformance_page.Met("a", "openrlhf", "grpo", "empty_rows")
    monkeypatch.setattr(conformance_page, "MET", (*conformance_page.MET, met))
    with pytest.raises(AssertionError, match="is met nowhere"):
        page()
