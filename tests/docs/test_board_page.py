"""docs/board.md: its tables are board.csv's, and so is each number of its findings."""

import csv
import importlib.util
import math
import re
from pathlib import Path

import pytest

from nemo_algos.lab.study import design, tuning
from nemo_algos.lab.study.runner import results

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "board.md").read_text()
RUNS = ROOT / "docs/study/board"
SPEC = importlib.util.spec_from_file_location("study_page", ROOT / "scripts/study_page.py")
assert SPEC and SPEC.loader
study_page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(study_page)
with open(ROOT / "docs" / "study" / "board" / "board.csv", newline="") as file:
    ROWS = {(row["regime"], row["arm"]): row for row in csv.DictReader(file)}
HEAD = re.compile(r"\*\*`(\w+)`, ([^*]+)\*\*:")
ARM = r"((?:Dr\. |Lite )?[A-Z]\w+)"
GAP = re.compile(ARM + r" ([+-][\d.]+\d)(?: \(p ([\d.]+)\))?")
DETECTABLE = re.compile(r"([\d.]+) for " + ARM)
FINDINGS = re.search(r"^## What it found\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
FOUR = ("ETR", "QUATRO", "ERPO", "APMPO")
ITEMS = re.findall(r"^- (.*?)(?=^- |^\n|\Z)", FINDINGS[1] if FINDINGS else "", re.M | re.DOTALL)


def test_the_tables_are_current():
    assert study_page.board() == PAGE, "run scripts/study_page.py"


@pytest.mark.parametrize("item", ITEMS)
def test_every_number_is_the_csvs(item):
    """To three digits behind the point; the bold head names regime and metric."""
    (regime, metric), text = HEAD.match(item).groups(), " ".join(item.split())
    for arm, gap, p in GAP.findall(text):
        row = ROWS[regime, arm]
        assert float(gap) == round(float(row[f"{metric}, difference"]), 3), arm
        assert not p or float(p) == round(float(row[f"{metric}, p Holm"]), 3), arm
    for least, arm in DETECTABLE.findall(text):
        assert float(least) == round(float(ROWS[regime, arm][f"{metric}, detectable"]), 3), arm
    assert GAP.search(text)
    assert not re.findall(r"\d\.\d", DETECTABLE.sub("", GAP.sub("", text)))


@pytest.mark.parametrize("item", ITEMS)
def test_every_verdict_is_the_csvs(item):
    """Of the four papers' methods Holm's p decides, of the others the interval."""
    (regime, metric), text = HEAD.match(item).groups(), " ".join(item.split())
    explored = item in ITEMS[4:]
    confirmed = re.search(r"confirmed for (.*?)(?:\.|, not for)(?: |$)", text)
    if not explored:
        named = {arm for arm, *_ in GAP.findall(confirmed[1])}
        below = {a for a in FOUR if float(ROWS[regime, a][f"{metric}, p Holm"]) < 0.05}
        assert named == below
    for arm, _, p in GAP.findall(text):
        row = ROWS[regime, arm]
        small = float(row[f"{metric}, p Holm"]) < 0.25
        assert explored or bool(p) == small, arm


def test_the_learning_rates_are_as_the_page_says():
    rate = {key: row["settings"].split("lr=")[1].split(",")[0] for key, row in ROWS.items()}
    for regime, own, half in (("updates_4", "0.0004", "0.0002"), ("stale", "0.0008", "0.0004")):
        assert rate[regime, "GRPO"] == own
        better = [a for r, a in ROWS if r == regime and resolved(r, a)]
        assert better and {rate[regime, arm] for arm in better} == {half}
    lowest = [key for key, value in rate.items() if key[0] == "stale" and value == "0.0004"]
    assert len(lowest) == 11
    done = {regime for regime, _ in ROWS}
    assert len(done) == 7 and "Seven of seven regimes are done" in PAGE


@pytest.mark.parametrize("regime", ["updates_4", "fp8", "grid", "stairs", "tokens_48"])
def test_a_lower_rate_keeps_more_at_equal_reward(regime):
    """As the page says: every method at half of GRPO's rate lies above every one at its rate.

    With 48 tokens GSPO never reaches it.
    """
    gaps = {"0.0002": [], "0.0004": []}
    for (of, arm), row in ROWS.items():
        if of == regime and arm != "GRPO":
            rate = row["settings"].split("lr=")[1].split(",")[0]
            gaps[rate].append(float(row["pass@16 at equal reward, difference"]))
    missing = [gap for gap in gaps["0.0004"] if math.isnan(gap)]
    assert len(missing) == (regime == "tokens_48")
    reached = [gap for gap in gaps["0.0004"] if gap not in missing]
    assert min(gaps["0.0002"]) > max(reached) and list(map(len, gaps.values())) == [11, 4]


def test_how_many_models_learn_with_150_tokens():
    study = tuning.tune(
        design.load("study/board.yaml", []), lambda _: results(RUNS / "results.csv")
    )
    paths, ends = {}, {}
    with open(RUNS / "paths.csv", newline="") as file:
        for point in csv.DictReader(file):
            paths.setdefault(point["run"], []).append(float(point["pass@1"]))
    for cell in design.runs(study)[1]:
        if cell.regime == "tokens_150":
            ends.setdefault(cell.arm, []).append((paths[cell.run][0], paths[cell.run][-1]))
    learned = {arm: sum(last > first for first, last in pairs) for arm, pairs in ends.items()}
    assert learned["GRPO"] == 1 and learned["ETR"] == learned["APMPO"] == 5
    assert [last for _, last in ends["GSPO"]] == [0.0] * 5


def resolved(regime, arm):
    """Whether it ends higher, or with four updates keeps more at equal reward."""
    metric = "pass@1" if regime == "stale" else "pass@16 at equal reward"
    return float(ROWS[regime, arm][f"{metric}, low"]) > 0


def test_the_findings_are_there():
    assert len(ITEMS) > 5
