"""The pages quote the studies' numbers as they are."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("numbers", ROOT / "scripts" / "study_numbers.py")
assert SPEC and SPEC.loader
numbers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(numbers)
QUOTING = [path for path in numbers.PAGES if numbers.QUOTE.search(path.read_text())]


@pytest.mark.parametrize("path", QUOTING, ids=lambda path: path.name)
def test_the_page_has_the_numbers_of_now(path):
    text = path.read_text()
    assert text == numbers.page(path), "run scripts/study_numbers.py"
    starts = re.compile(r"^\s*<!-- (full|mismatch|board):", re.MULTILINE)
    assert not starts.search(text)  # Markdown takes a line that begins so for HTML


def test_no_interval_is_typed_beside_the_studies_own_pages():
    interval = re.compile(r"[+-]\d\.\d{3}\s*\([+-]\d\.\d{3}")
    typed = {
        path.name: interval.findall(numbers.QUOTE.sub("", path.read_text()))
        for path in numbers.PAGES
        if path.is_relative_to(ROOT / "docs")
    }
    assert {name: found for name, found in typed.items() if found} == {}
    assert len(QUOTING) == 12


def test_a_difference_by_hand(tmp_path, monkeypatch):
    """Differences 0.1, 0.2, 0.3: mean 0.2, deviation 0.1, t(0.975, 2) = 4.302653."""
    folder = tmp_path / "hand"
    folder.mkdir()
    (folder / "study.json").write_text('{"regimes": {"r": {"baseline": "grpo"}}}')
    values = {"grpo": (0.5, 0.1, 0.4), "etr": (0.6, 0.3, 0.7)}
    results, cells = ["id,reward/mean"], ["regime,arm,seed,run"]
    for arm, found in values.items():
        for seed, value in enumerate(found):
            results.append(f"{arm}{seed},{value}")
            cells.append(f"r,{arm},{seed},{arm}{seed}")
    cells.append("r,etr,3,unfinished")
    (folder / "results.csv").write_text("\n".join(results))
    (folder / "cells.csv").write_text("\n".join(cells))
    monkeypatch.setattr(numbers, "RESULTS", tmp_path)
    half = 4.302653 * 0.1 / 3**0.5
    expected = pytest.approx((0.2, 0.2 - half, 0.2 + half), abs=1e-6)
    assert numbers.difference("hand", "r", "etr", "reward") == expected
    assert numbers.number("hand", "r, etr, reward") == "+0.200 (-0.048, +0.448)"
    assert numbers.number("hand", "runs") == "6"
