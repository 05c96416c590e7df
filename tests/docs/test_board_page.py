"""docs/board.md: its tables are board.csv's, and so is each number of its findings."""

import csv
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "board.md").read_text()
SPEC = importlib.util.spec_from_file_location("study_page", ROOT / "scripts/study_page.py")
assert SPEC and SPEC.loader
study_page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(study_page)
with open(ROOT / "docs" / "study" / "board" / "board.csv", newline="") as file:
    ROWS = {(row["regime"], row["arm"]): row for row in csv.DictReader(file)}
# `updates_4, ETR: pass@1, difference`
REFERENCE = re.compile(r"`(\w+), ([\w. ]+): ([^`]+)`")
BOLD = re.compile(r"\*\*([+-]?[\d.]+)\*\*")
FINDINGS = re.search(r"^## What it found\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
ITEMS = re.findall(r"^- (.*?)(?=^- |^\n|\Z)", FINDINGS[1] if FINDINGS else "", re.M | re.DOTALL)


def test_the_tables_are_current():
    assert study_page.board() == PAGE, "run scripts/study_page.py"


@pytest.mark.parametrize("item", ITEMS)
def test_every_number_is_the_csvs(item):
    """In the order of the references, to three digits behind the point."""
    want = [float(ROWS[regime, arm][name]) for regime, arm, name in REFERENCE.findall(item)]
    assert [float(x) for x in BOLD.findall(item)] == [round(x, 3) for x in want] and want
    assert not re.findall(r"\d\.\d", BOLD.sub("", REFERENCE.sub("", item)))


def test_the_findings_are_there():
    assert len(ITEMS) > 5
