"""The tables of `plan` in docs/ are what plan says now."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("plan_tables", ROOT / "scripts/plan_tables.py")
assert SPEC and SPEC.loader
tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tables)


@pytest.mark.parametrize("name", tables.TABLES)
def test_the_page_is_current(name):
    assert (ROOT / name).read_text() == tables.page(name), "run scripts/plan_tables.py"


def test_every_row_is_there_and_the_worst_comes_first():
    rows = [line.split(" | ") for line in (ROOT / "docs/plan.md").read_text().splitlines()]
    errors = [float(r[-1].strip(" |%")) for r in rows if r[0].startswith("| grpo-")]
    assert len(errors) == len(tables.PUBLISHED.read_text().splitlines()) - 1 == 27
    assert errors == sorted(errors, key=abs, reverse=True)
