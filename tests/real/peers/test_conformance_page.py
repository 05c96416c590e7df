"""The tables of conformance.md are what a run gives now."""

import conformance_page
import pytest
from conformance_page import PAGE, kinds_of, page, put


def test_tables_are_current():
    text = PAGE.read_text()
    assert text == put(text, page()), "make conformance writes them"


def test_a_departure_that_nothing_explains_is_an_error():
    row = {"method": "grpo", "trap": "plain", "verdict": "departs", "detail": {"loss": 0.5}}
    with pytest.raises(
        AssertionError, match=r"\('verl', 'grpo', 'plain'\): loss 5e-01 is not expl"
    ):
        kinds_of("verl", row)


def test_a_kind_that_is_met_nowhere_is_an_error(monkeypatch):
    met = conformance_page.Met("a", "openrlhf", "grpo", "empty_rows")
    monkeypatch.setattr(conformance_page, "MET", (*conformance_page.MET, met))
    with pytest.raises(AssertionError, match="is met nowhere"):
        page()
