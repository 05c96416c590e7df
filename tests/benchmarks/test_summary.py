"""Means, intervals and paired differences of a study, by hand."""

import csv
import math

import pytest
from design import Study, StudyCell
from runner import write_table
from summary import estimate, summarise, table

ARMS = {"grpo": {}, "etr": {}}
STUDY = Study.model_validate(
    {"regimes": {"r": {"claim": "-", "baseline": "grpo", "arms": ARMS, "seeds": 3}}}
)


def rows(**values):
    """run id -> row: grpo0=.1 is the run of grpo with seed 0."""
    return {name: {"id": name, "pass@1": value} for name, value in values.items()}


CELLS = [StudyCell("r", arm, seed, f"{arm}{seed}") for seed in range(3) for arm in ARMS]
FOUND = rows(grpo0=0.1, grpo1=0.2, grpo2=0.6, etr0=0.2, etr1=0.4, etr2=0.9)


def test_interval_by_hand():
    # mean 3, sd sqrt(2.5), t(.975, 4) = 2.7764451
    e = estimate([1, 2, 3, 4, 5])
    half = 2.7764451 * math.sqrt(2.5) / math.sqrt(5)
    assert tuple(e[:4]) == pytest.approx((5, 3, 3 - half, 3 + half))
    assert e.resolved and not estimate([-1, 1, 2]).resolved


def test_one_seed_has_no_interval():
    e = estimate([0.5])
    assert (e.n, e.mean) == (1, 0.5)
    assert all(map(math.isnan, e[2:])) and not e.resolved


def test_differences_are_by_seed():
    by_arm = {r.arm: r for r in summarise(STUDY, CELLS, FOUND)}
    assert by_arm["etr"].value.mean == pytest.approx(0.5)
    # .1, .2, .3: mean .2, sd .1, t(.975, 2) = 4.3026527
    half = 4.3026527 * 0.1 / math.sqrt(3)
    *interval, p = by_arm["etr"].difference
    assert interval == pytest.approx([3, 0.2, 0.2 - half, 0.2 + half])
    # Student's t with 2 degrees of freedom has a closed form: t = 2 sqrt(3), p = 1 - t/sqrt(t^2+2)
    assert p == pytest.approx(1 - 2 * math.sqrt(3 / 14))
    *interval, p = by_arm["grpo"].difference
    assert interval == [3, 0, 0, 0] and math.isnan(p)


def test_a_stopped_study_compares_the_seeds_of_both():
    found = {k: v for k, v in FOUND.items() if k not in ("grpo1", "etr2")}
    etr = next(r for r in summarise(STUDY, CELLS, found) if r.arm == "etr")
    assert (etr.value.n, etr.difference.n) == (2, 1)
    assert etr.difference.mean == pytest.approx(0.1)


def test_no_pair_no_difference():
    (etr,) = summarise(STUDY, CELLS, rows(etr0=0.2))
    assert (etr.value.n, etr.difference.n) == (1, 0)
    assert math.isnan(etr.difference.mean)


def test_the_file(tmp_path):
    write_table(tmp_path / "summary.csv", table(summarise(STUDY, CELLS, FOUND)))
    with open(tmp_path / "summary.csv", newline="") as file:
        grpo, etr = csv.DictReader(file)
    assert (grpo["arm"], etr["arm"], etr["metric"], etr["n"], etr["pairs"]) == (
        "grpo",
        "etr",
        "pass@1",
        "3",
        "3",
    )
    assert (etr["mean"], etr["difference"], etr["p"]) == ("0.5", "0.2", "0.0741799")
