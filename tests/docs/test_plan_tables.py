"""The tables of `plan` in docs/ are what plan says now."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("plan_tables", ROOT / "scripts/plan_tables.py")
assert SPEC and SPEC.loader
tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tables)


@pytest.mark.long
@pytest.mark.parametrize("name", tables.TABLES)
def test_the_page_is_current(name):
    assert (ROOT / name).read_text() == tables.page(name), "run scripts/plan_tables.py"
