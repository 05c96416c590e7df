"""docs/methods/zoo.md is what the records and the figures say now."""

import csv
import importlib.util
import re
from pathlib import Path

from nemo_algos.algorithms.methods import METHODS, STUDIED

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("method_index", ROOT / "scripts/method_index.py")
assert SPEC and SPEC.loader
index = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(index)
FIGURES = ROOT / "docs" / "methods" / "parity.csv"


def test_the_page_is_current():
    written = (ROOT / "docs" / "methods" / "zoo.md").read_text()
    assert written == index.page(), "run scripts/method_index.py"


def test_every_file_of_the_zoo_has_its_formula_and_says_why_in_a_few_sentences():
    whole = index.page()
    page = " ".join(whole.split())
    for name in set(METHODS) - set(STUDIED):
        text = importlib.import_module(METHODS.modules[name]).__doc__
        assert text.count("\n\nWhy: ") == 1, name
        assert f"```text\n{index.formula(name)}\n```" in whole and "=" in index.formula(name), name
        reason = index.why(name)
        assert 100 < len(reason) < 400 and reason in page, name
        assert 1 <= len(re.findall(r"\.(?= |$)", reason)) <= 3 and reason.endswith("."), name


def test_every_method_of_the_zoo_has_figures_and_few_lines():
    with FIGURES.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} >= set(METHODS) - set(STUDIED)
    assert len({row["method"] for row in rows if row["loss"]}) >= 25
    assert all(float(row[k]) <= 1e-10 for row in rows for k in ("loss", "gradient") if row[k])
    for name in set(METHODS) - set(STUDIED):
        assert 1 <= sum(map(index.length, index.functions(METHODS[name]))) <= 15, name
