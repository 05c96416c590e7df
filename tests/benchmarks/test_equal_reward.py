"""Paths compared at a level of pass@1, the curve through them, and Holm's p: by hand."""

import json
import math
import shutil

import equal_reward
import pytest
import scaling
import summary
from design import Confirm, Study, StudyCell
from equal_reward import AT, REACHED, STEPS, at_level
from summary import ArmResult, estimate

REGIME = {"claim": "-", "baseline": "grpo", "arms": {"grpo": {}, "etr": {}}, "seeds": 4, "bases": 2}


def point(step, passed, kept=0.0):
    return {
        "step": step,
        "pass@1": passed,
        "pass@16": kept,
        "UCC@16": 2 * kept,
        "entropy": 3 * kept,
    }


def test_between_two_evaluations_by_a_straight_line():
    path = [point(0, 0.2, 1.0), point(8, 0.3, 0.8), point(16, 0.7, 0.4), point(24, 0.5, 0.1)]
    found = at_level(path, 0.4)  # a quarter of the way from 0.3 to 0.7
    assert found == pytest.approx(
        {REACHED: 1, STEPS: 10, AT.format("pass@16"): 0.7, AT.format("UCC@16"): 1.4}
        | {AT.format("entropy"): 2.1}
    )
    assert at_level(path, 0.71) == {REACHED: 0.0}
    assert at_level(path, 0.2)[STEPS] == 0 == at_level(path, 0.1)[STEPS]
    assert at_level(path, 0.7)[STEPS] == 16


def test_the_level_is_the_baselines_of_each_taught_model():
    study = Study.model_validate({"regimes": {"r": REGIME}, "path": 8})
    cells = [
        StudyCell("r", arm, seed, f"{arm}{seed}", 100 + seed % 2)
        for seed in (100, 101, 102)
        for arm in ("grpo", "etr")
    ]
    ends = {"grpo100": 0.5, "grpo102": 0.7, "grpo101": 0.2, "etr100": 0.6, "etr102": 0.3}
    starts = {100: 0.2, 101: 0.3}
    paths = {
        c.run: [point(0, starts[c.base]), point(8, ends[c.run])] for c in cells if c.run in ends
    }
    found = equal_reward.equal_reward(study, cells, paths)
    # model 100: (0.2 + 0.6) / 2; model 101's baseline has lost, and has no level
    steps = {c.run: row.get(STEPS) for c, row in found.items()}
    want = {"grpo100": 8 * 2 / 3, "grpo102": 8 * 0.4, "etr100": 4.0}
    assert {run: s for run, s in steps.items() if s is not None} == pytest.approx(want)
    assert {c.run for c, row in found.items() if row[REACHED] == 0} == {"etr102"}


def test_a_path_has_the_entropy_of_its_steps(tmp_path):
    (tmp_path / "raw").mkdir()
    steps = [{"entropy/exact": 0.5}, {"entropy/exact": 0.25}]
    evaluated = [{"step": i, "pass@1": i / 4, "pass@16": 0.5, "UCC@16": 2.0} for i in range(3)]
    for name, rows in {"a": steps, "a.path": evaluated}.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "raw" / f"{name}.jsonl").write_text(text)
    found = equal_reward.read_paths(tmp_path, ["a", "b"])
    assert [p["entropy"] for p in found["a"]] == [0.5, 0.25, 0.25] and [*found] == ["a"]
    shutil.rmtree(tmp_path / "raw")
    assert equal_reward.read_paths(tmp_path, ["a"]) == found


def test_a_pair_is_a_taught_model():
    study = Study.model_validate({"regimes": {"r": REGIME}})
    values = {"grpo": (0.1, 0.2, 0.3, 0.4), "etr": (0.2, 0.4, 0.6, 0.5)}
    cells = [StudyCell("r", a, i, f"{a}{i}", i % 2) for i in range(4) for a in values]
    rows = {f"{a}{i}": {"pass@1": x} for a, found in values.items() for i, x in enumerate(found)}
    etr = next(r for r in summary.summarise(study, cells, rows) if r.arm == "etr")
    assert (etr.value.n, etr.difference.n) == (2, 2)
    # models: (0.2 + 0.6) / 2 - (0.1 + 0.3) / 2, (0.4 + 0.5) / 2 - (0.2 + 0.4) / 2
    assert etr.difference[:2] == pytest.approx((2, (0.2 + 0.15) / 2))


def test_the_detectable_difference_by_hand():
    # df 4: t(.975) = 2.7764451, t(.8) = 0.9409646; error sqrt(2.5 / 5)
    assert estimate([1, 2, 3, 4, 5]).detectable == pytest.approx(3.7174097 * math.sqrt(0.5))
    assert math.isnan(estimate([1]).detectable)


def test_holm_over_what_was_named_beforehand():
    arms = {name: {} for name in ("grpo", "a", "b", "c", "d")}
    other = {"claim": "-", "baseline": "grpo", "exploratory": True, "arms": arms}
    study = Study.model_validate({"regimes": {"r": {**REGIME, "arms": arms}, "explored": other}})
    study = study.model_copy(update={"confirm": Confirm(arms=["a", "b", "c"], metrics=["pass@1"])})
    p = {"a": 0.02, "b": 0.01, "c": math.nan, "d": 0.001}
    found = [
        ArmResult(regime, arm, metric, estimate([1, 2]), estimate([1, 2])._replace(p=value))
        for regime in ("r", "explored")
        for arm, value in p.items()
        for metric in ("pass@1", "length")
    ]
    adjusted = {r[:3]: r.adjusted for r in summary._adjusted(study, found)}
    named = {k: v for k, v in adjusted.items() if not math.isnan(v)}
    assert named == pytest.approx(
        {("r", "b", "pass@1"): 0.03, ("r", "a", "pass@1"): 0.04, ("r", "c", "pass@1"): 1.0}
    )


def test_the_curve_is_found_again():
    steps = [0, 8, 16, 24, 32, 48, 64, 96]
    passed = [0.2] + [0.2 + 0.6 / (1 + (20 / c) ** 2) for c in steps[1:]]
    found = scaling.fit(steps, passed)
    assert found[:3] == pytest.approx((0.8, 20, 2), rel=1e-3)
    assert found.share == pytest.approx(1 / (1 + (20 / 96) ** 2), rel=1e-3) and found.bends
    early = scaling.fit(steps[:6], passed[:6])
    assert early.share == pytest.approx(1 / (1 + (20 / 48) ** 2), rel=1e-2)


def test_no_curve_through_few_points_or_a_loss():
    assert scaling.fit([0, 8, 16], [0.1, 0.2, 0.3]) is None
    assert scaling.fit([0, 8, 16, 24, 32], [0.4, 0.3, 0.3, 0.3, 0.3]) is None
