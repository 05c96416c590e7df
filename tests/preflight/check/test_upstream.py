"""Reported faults of others' software: each row of upstream.yaml is shown where it holds."""

from collections import defaultdict

import pytest
from releases import MAIN

from nemo_algos.preflight.check.rules.upstream import Limit, reported, upstream_faults


def fits(wanted):
    """A value that a condition takes, and one that it does not."""
    if isinstance(wanted, Limit):
        return wanted.above + 1, wanted.above
    if isinstance(wanted, str):
        return wanted.replace("*", "x"), "another"
    return wanted, not wanted


def said_of(row, values):
    """The notes at its key that name its report, of a run that has these values alone."""
    run = defaultdict(lambda: None, values)
    notes = [n for n in upstream_faults(run) if n.path == row.key and row.report in n.message]
    assert {n.severity for n in notes} <= {"note"}
    return [n.message for n in notes]


@pytest.mark.parametrize("row", reported(), ids=lambda row: f"{row.report} {row.key}")
def test_a_reported_fault_is_shown_where_all_of_its_conditions_hold(row):
    values = {key: fits(wanted)[0] for key, wanted in row.when.items()}
    assert len(said_of(row, values)) == 1
    for key, wanted in row.when.items():
        assert not said_of(row, values | {key: fits(wanted)[1]}), key
        assert not said_of(row, values | {key: None}), key
    assert {row.key, *row.when} - MAIN.schema.keys() == set()


def test_a_mended_fault_names_the_release(monkeypatch):
    row = reported()[0].model_copy(update={"gone": "v0.9.0"})
    monkeypatch.setattr("nemo_algos.preflight.check.rules.upstream.reported", lambda: [row])
    (said,) = said_of(row, {key: fits(wanted)[0] for key, wanted in row.when.items()})
    assert said.endswith(f"({row.report}, mended in v0.9.0).")
