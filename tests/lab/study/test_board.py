"""The board's file and page, of results made by hand."""

import csv
import math

import pytest

from nemo_algos.lab.study import board
from nemo_algos.lab.study.design import Study, StudyCell
from nemo_algos.lab.study.equal_reward import AT, REACHED
from nemo_algos.lab.study.summary import ArmResult, estimate

ARMS = {"GRPO": {}, "<ETR>": {"config": "etr.yaml", "method.micro": 0.05}}
REGIME = {"title": "Four", "claim": "<b> beats it", "baseline": "GRPO", "arms": ARMS, "seeds": 3}
STUDY = Study.model_validate({"regimes": {"four_tuning": REGIME, "four": REGIME}, "path": 8})
CELLS = [StudyCell("four", arm, i, f"{arm}{i}") for arm in ARMS for i in range(3)]
STEPS = [0, 8, 16, 24, 32, 40]


def path(top):
    return [{"step": 0, "pass@1": 0.2}] + [
        {"step": c, "pass@1": 0.2 + top / (1 + (8 / c) ** 2)} for c in STEPS[1:]
    ]


@pytest.fixture
def folder(tmp_path):
    gap, none = estimate([0.1, 0.2, 0.3]), estimate([-0.1, 0.1, 0.3])
    found = [
        ArmResult(regime, arm, metric, estimate(values), difference, adjusted)
        for regime in ("four_tuning", "four")
        for arm, values in {"GRPO": [0.3, 0.4, 0.5], "<ETR>": [0.4, 0.6, 0.8]}.items()
        for metric, difference, adjusted in (
            ("pass@1", gap, 0.04),
            (AT.format("pass@16"), none, math.nan),
            (REACHED, gap, math.nan),
        )
    ]
    paths = {c.run: path(0.6) for c in CELLS}
    board.write(STUDY, CELLS, found, paths, tmp_path)
    return tmp_path


def test_a_row_per_arm_without_tuning(folder):
    with open(folder / "board.csv", newline="") as file:
        grpo, etr = csv.DictReader(file)
    assert (grpo["regime"], grpo["arm"], etr["arm"]) == ("four", "GRPO", "<ETR>")
    assert (etr["pass@1"], etr["pass@1, n"], etr["settings"]) == ("0.6", "3", "micro=0.05")
    # mean 0.2, sd 0.1, n 3: t(.975, 2) = 4.302653, t(.8, 2) = 1.060660
    error = 0.1 / math.sqrt(3)
    assert float(etr["pass@1, low"]) == pytest.approx(0.2 - 4.302653 * error, rel=1e-5)
    assert float(etr["pass@1, detectable"]) == pytest.approx(5.363313 * error, rel=1e-5)
    assert etr["pass@1, p Holm"] == "0.04" and etr["entropy at equal reward"] == "nan"
    assert float(etr["asymptote"]) == pytest.approx(0.8, rel=1e-3) and etr["bends"] == "True"
    assert f"{REACHED}, low" not in etr


def test_the_page_has_each_number_and_escapes_names(folder):
    html = (folder / "board.html").read_text()
    assert "<ETR>" not in html and html.count('data-arm="&lt;ETR&gt;"') == 1
    assert "0.600" in html and "+0.200" in html and "detectable" in html
    assert "micro=0.05" in html and "&lt;b&gt; beats it" in html
    assert "Holm&#39;s p 0.04" in html or "Holm's p 0.04" in html
    assert "http" not in html.replace("http-equiv", "")
