"""The tables of docs/conformance.md are what a run gives now; the schema is one for everybody."""

import json

import conformance_page
import jsonschema
import pytest
from conformance_page import PAGE, kinds_of, page, put

from nemo_algos.algorithms.golden import fixture


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


def test_the_schema_holds_every_case_and_refuses_others(tmp_path):
    fixture.write(tmp_path)
    schema, cases = (
        json.loads((tmp_path / f).read_text()) for f in ("cases.schema.json", "cases.json")
    )
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    check.validate(cases)
    for change in ({"expected": 3}, {"counts": {"rows": 1.5}}, {"pieces": [0]}, {"inputs": None}):
        changed = cases | {"cases": [cases["cases"][0] | change]}
        with pytest.raises(jsonschema.ValidationError):
            check.validate(changed)
