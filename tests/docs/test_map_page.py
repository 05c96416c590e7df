"""docs/mismatch_map.md: its numbers are those of the runs in results.csv."""

import csv
import re
from pathlib import Path
from statistics import fmean, median

import pytest
from scipy import stats

from nemo_algos.lab.study import design

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "mismatch_map.md").read_text().split())
with open(ROOT / "docs" / "study" / "mismatch" / "results.csv", newline="") as file:
    ROWS = {row["id"]: row for row in csv.DictReader(file)}
RUNS = {
    (c.regime, c.arm, c.seed): c.run for c in design.runs(design.load("study/mismatch.yaml", []))[1]
}
GAP = re.compile(r"([+-]\d\.\d{3}) \(([+-]\d\.\d{3}), ([+-]\d\.\d{3})\)")
# the arms of the table of claims, in the order of its numbers
CLAIMED = [
    ("damage", "noise 0.3"),
    ("damage", "16 updates stale"),
    ("damage", "noise 0.1"),
    ("damage_routes", "flips 10 %"),
    ("cure_noise", "token IS"),
    ("cure_noise", "sequence IS, RS"),
    ("cure_noise", "IcePop"),
    ("cure_noise", "bypass"),
    ("cure_stale", "token IS"),
    ("cure_stale", "bypass"),
    ("cure_stale", "IcePop"),
    ("cure_stale", "sequence IS, RS"),
    ("cure_flips", "route replay"),
    ("cure_flips", "bypass"),
]
PASSED = "pass@1"


def passed(regime, arm):
    return {
        s: float(ROWS[run][PASSED]) for (r, a, s), run in RUNS.items() if (r, a) == (regime, arm)
    }


def gap(one, other):
    """Mean and 95 % interval of the differences, paired by seed."""
    gaps = [one[seed] - other[seed] for seed in one]
    low, high = stats.t.interval(0.95, len(gaps) - 1, fmean(gaps), stats.sem(gaps))
    return tuple(f"{x:+.3f}" for x in (fmean(gaps), low, high))


def test_the_claims_are_the_runs():
    shown = GAP.findall(PAGE[PAGE.index("| claim |") : PAGE.index("Exploratory")])
    baseline = {"damage": "clean", "damage_routes": "clean"}
    for (regime, arm), numbers in zip(CLAIMED, shown, strict=True):
        assert gap(passed(regime, arm), passed(regime, baseline.get(regime, "none"))) == numbers


def test_one_update_makes_methods_one():
    alike = [passed("one_stale", m) for m in ("GRPO", "GSPO", "ETR", "SAPO")]
    assert alike[0] == alike[1] == alike[2] == alike[3]
    arms = {a for r, a, _ in RUNS if r == "one_stale" and a.endswith(", bypass")}
    pairs = {a: (passed("one_stale", a), passed("one_stale", a.split(",")[0])) for a in arms}
    higher = [
        a
        for a, (with_it, without) in pairs.items()
        if fmean(with_it.values()) > fmean(without.values())
    ]
    assert f"{len(higher)} of {len(arms)} methods have a higher mean" in PAGE
    assert not [a for a, pair in pairs.items() if gap(*pair)[1][0] == "+"]
    assert "GRPO by {} ({}, {})".format(*gap(*pairs["GRPO, bypass"])) in PAGE


def test_what_fp8_training_and_flips_change():
    rollouts, *_ = gap(passed("fp8_both", "GRPO"), passed("fp8_training", "GRPO"))
    assert f"FP8 rollouts on top change GRPO by {rollouts};" in PAGE
    assert gap(passed("fp8_both", "GSPO"), passed("fp8_both", "GRPO"))[2][0] == "-"
    for correction in ("token IS", "bypass"):
        assert (
            gap(passed("fp8_both", f"GRPO, {correction}"), passed("fp8_both", "GRPO"))[0][0] == "-"
        )
    lost, *_ = gap(passed("flips_10", "QUATRO, bypass"), passed("flips_10", "QUATRO"))
    assert f"With flips QUATRO loses {-float(lost):.2f}." in PAGE


def test_the_steps_of_collapses():
    steps = {run: float(row["collapse step"]) for run, row in ROWS.items() if row["collapse step"]}
    of = {run: (regime, arm) for (regime, arm, _), run in RUNS.items()}

    def middle(*regimes, bypass=True):
        found = [
            x
            for run, x in steps.items()
            if of[run][0] in regimes and of[run][1].endswith("bypass") == bypass
        ]
        return round(median(found) + 1e-9)

    assert f"made again, {len(steps)} collapsed again" in PAGE
    beside = middle("cure_noise", "noise_3"), middle("fast_noise_3")
    late = middle("fast_noise_3", "fast_stale_16", bypass=False)
    assert "begins at step {} in the median (at `2 lr` at {})".format(*beside) in PAGE
    assert f"otherwise at step {late} of 32" in PAGE


def test_the_runs_and_their_time():
    regimes = design.load("study/mismatch.yaml", []).regimes.values()
    intervals = sum(len(r.arms) - 1 for r in regimes if r.exploratory)
    assert f"about {round(intervals / 20)} of {intervals} intervals" in PAGE
    assert f"by {len(ROWS):,} runs" in PAGE and {*RUNS.values()} == {*ROWS}
    minutes = sum(float(row["CPU seconds"]) for row in ROWS.values()) / 60
    assert int(re.search(r"# (\d+) minutes of CPU", PAGE)[1]) == pytest.approx(minutes, abs=1)
