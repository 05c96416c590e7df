"""docs/messages.md is what `check` says of one planted mistake for each rule."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_is_current(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    spec = importlib.util.spec_from_file_location("messages", ROOT / "scripts/messages.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert len(script.first_of_each_rule()) > 80
    assert script.PAGE.read_text() == script.page(), "run scripts/messages.py"
