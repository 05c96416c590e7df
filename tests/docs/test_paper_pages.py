"""docs/papers/PAPER.md is what the manifests say now."""

import importlib.util
import json
from pathlib import Path

import pytest

from nemo_algos.lab.replicate.toy import toy

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("paper_pages", ROOT / "scripts/paper_pages.py")
assert SPEC and SPEC.loader
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)


@pytest.mark.parametrize("name", script.names())
def test_the_page_is_current(name):
    written = (ROOT / "docs" / "papers" / f"{name}.md").read_text()
    assert written == script.page(name), "run scripts/paper_pages.py"
    known = script.paper(name)
    texts = {item for item, about in known.items.items() if about.kind == "text"}
    assert all(f"| {item} |" in written for item in known.items.keys() - texts)
    assert all(f" {item} (" in " ".join(written.split()) for item in texts)
    stored = json.loads((ROOT / "docs/papers/toy.json").read_text()).get(name, [])
    assert f"--toy {name}" in written and stored
    runs = {line[1].split(" (")[0] for line in stored}
    small = toy(known)
    assert runs <= {run for item in small.items.values() for run in item.needed_runs()}
    assert all(misprint.says in " ".join(written.split()) for misprint in known.misprints)


def test_the_index_counts_the_toys_runs():
    small = [toy(script.paper(name)) for name in script.names()]
    runs = {run for t in small for item in t.items.values() for run in item.needed_runs()}
    assert f"makes {len(runs)} runs" in (ROOT / "docs/papers/index.md").read_text()
