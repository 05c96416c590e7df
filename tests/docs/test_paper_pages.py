"""docs/papers/PAPER.md is what the manifests say now."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("paper_pages", ROOT / "scripts/paper_pages.py")
assert SPEC and SPEC.loader
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)


@pytest.mark.parametrize("name", script.names())
def test_the_page_is_current(name):
    written = (ROOT / "docs" / "papers" / f"{name}.md").read_text()
    assert written == script.page(name), "run scripts/paper_pages.py"
