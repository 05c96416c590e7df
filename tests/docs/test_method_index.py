"""docs/methods/zoo.md is what the records and the figures say now."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("method_index", ROOT / "scripts/method_index.py")
assert SPEC and SPEC.loader
index = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(index)
FIGURES = ROOT / "docs" / "methods" / "parity.csv"


def test_the_page_is_current():
    written = (ROOT / "docs" / "methods" / "zoo.md").read_text()
    assert written == index.page(), "run scripts/method_index.py"
