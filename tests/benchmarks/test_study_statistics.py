"""The study's statistics by hand; they need benchmarks/requirements.txt."""

# ruff: noqa: E402

import json
import math

import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("statsmodels")

import board
import equal_reward
import figures
import report
import summary
import survival
from equal_reward import AT, REACHED, STEPS
from scipy import stats

REGIME = {
    "title": "",
    "claim": "-",
    "baseline": "grpo",
    "arms": {"grpo": {}, "etr": {"config": "etr.yaml", "method.micro": 0.05}},
    "settings": {},
    "seeds": 3,
    "first_seed": 0,
    "exploratory": False,
    "column": "",
    "bases": 0,
}


def study(confirm=None, path=0, **regimes):
    return {"regimes": regimes or {"r": REGIME}, "confirm": confirm, "path": path}


def runs(values, regime="r", bases=None):
    """A row per arm and seed; bases: of each seed."""
    return pd.DataFrame(
        {"regime": regime, "arm": arm, "seed": i, "base": bases[i] if bases else 0}
        | {"run": f"{arm}{i}", "pass@1": value}
        for arm, found in values.items()
        for i, value in enumerate(found)
        if value is not None
    )


def of(table, arm, metric="pass@1"):
    return table[(table["arm"] == arm) & (table["metric"] == metric)].iloc[0]


def test_interval_and_power_by_hand():
    found = summary.paired(pd.Series([1, 2, 3, 4, 5]))
    half = 2.7764451 * math.sqrt(2.5 / 5)  # t(.975, 4) sd / sqrt(n)
    assert found["mean"] == 3
    assert (found["low"], found["high"]) == pytest.approx((3 - half, 3 + half))
    # at the detectable mean a two-sided t test with 4 degrees of freedom has 80 % power
    shift = found["detectable"] / math.sqrt(2.5) * math.sqrt(5)
    beyond = stats.nct.sf(2.7764451, 4, shift) + stats.nct.cdf(-2.7764451, 4, shift)
    assert beyond == pytest.approx(0.8, abs=1e-4)
    assert summary.paired(pd.Series([0.5])) == {"n": 1, "mean": 0.5}


def test_differences_are_by_seed():
    table = summary.summarise(study(), runs({"grpo": (0.1, 0.2, 0.6), "etr": (0.2, 0.4, 0.9)}))
    etr = of(table, "etr")
    # .1, .2, .3: mean .2, sd .1, t(.975, 2) = 4.3026527
    half = 4.3026527 * 0.1 / math.sqrt(3)
    found = etr[["mean", "difference", "difference low", "difference high"]].tolist()
    assert found == pytest.approx([0.5, 0.2, 0.2 - half, 0.2 + half])
    # Student's t with 2 degrees of freedom has a closed form: t = 2 sqrt(3), p = 1 - t/sqrt(t^2+2)
    assert etr["p"] == pytest.approx(1 - 2 * math.sqrt(3 / 14))
    grpo = of(table, "grpo")
    assert grpo["difference"] == 0 and math.isnan(grpo["p"])


def test_a_stopped_study_compares_the_seeds_of_both():
    values = {"grpo": (0.1, None, 0.6), "etr": (0.2, 0.4, None)}
    etr = of(summary.summarise(study(), runs(values)), "etr")
    assert (etr["n"], etr["pairs"]) == (2, 1) and etr["difference"] == pytest.approx(0.1)
    alone = of(summary.summarise(study(), runs({"etr": (0.2,)})), "etr")
    assert (alone["n"], alone["pairs"]) == (1, 0) and math.isnan(alone["difference"])


def test_a_pair_is_a_taught_model():
    values = {"grpo": (0.1, 0.2, 0.3, 0.4), "etr": (0.2, 0.4, 0.6, 0.5)}
    found = summary.summarise(study(r={**REGIME, "bases": 2}), runs(values, bases=[0, 1, 0, 1]))
    etr = of(found, "etr")
    # models: (0.2 + 0.6) / 2 - (0.1 + 0.3) / 2, (0.4 + 0.5) / 2 - (0.2 + 0.4) / 2
    assert (etr["n"], etr["pairs"]) == (2, 2)
    assert etr["difference"] == pytest.approx((0.2 + 0.15) / 2)


def test_holm_over_what_was_named_beforehand():
    p = {"a": 0.02, "b": 0.01, "c": math.nan, "d": 0.001}
    rows = [
        {"regime": regime, "arm": arm, "metric": metric, "p": value}
        for regime in ("r", "explored")
        for arm, value in p.items()
        for metric in ("pass@1", "length")
    ]
    confirm = {"arms": ["a", "b", "c"], "metrics": ["pass@1"]}
    plan = study(confirm, r=REGIME, explored={**REGIME, "exploratory": True})
    found = summary.with_holm(plan, pd.DataFrame(rows)).dropna(subset="p Holm")
    adjusted = {(row["regime"], row["arm"]): row["p Holm"] for _, row in found.iterrows()}
    assert adjusted == pytest.approx({("r", "b"): 0.03, ("r", "a"): 0.04, ("r", "c"): 1.0})


def path(*points):
    """Of (step, pass@1, kept): UCC@16 is twice and the entropy three times what is kept."""
    return pd.DataFrame(
        {"step": step, "pass@1": passed, "pass@16": kept, "UCC@16": 2 * kept, "entropy": 3 * kept}
        for step, passed, kept in points
    )


def test_between_two_evaluations_by_a_straight_line():
    points = path((0, 0.2, 1.0), (8, 0.3, 0.8), (16, 0.7, 0.4), (24, 0.5, 0.1))
    found = equal_reward.at_level(points, 0.4)  # a quarter of the way from 0.3 to 0.7
    assert found == pytest.approx(
        {REACHED: 1, STEPS: 10, AT.format("pass@16"): 0.7, AT.format("UCC@16"): 1.4}
        | {AT.format("entropy"): 2.1}
    )
    assert equal_reward.at_level(points, 0.71) == {REACHED: 0.0}
    assert equal_reward.at_level(points, 0.1)[STEPS] == 0
    assert equal_reward.at_level(points, 0.7)[STEPS] == 16


def test_the_level_is_the_baselines_of_each_taught_model():
    bases = [100, 101, 100]
    cells = runs({"grpo": (0.5, 0.2, 0.7), "etr": (0.6, None, 0.3)}, bases=bases)
    starts = {100: 0.2, 101: 0.3}
    every = [
        path((0, starts[cell.base], 0.0), (8, cell[6], 0.0)).assign(run=cell.run)
        for cell in cells.itertuples()
    ]
    found = equal_reward.at_equal_reward(study(), cells, pd.concat(every))
    # model 100: (0.2 + 0.6) / 2; model 101's baseline has lost, and has no level
    steps = dict(zip(cells["run"], found[STEPS].reindex(cells.index), strict=True))
    steps = {run: step for run, step in steps.items() if pd.notna(step)}
    assert steps == pytest.approx({"grpo0": 8 * 2 / 3, "grpo2": 8 * 0.4, "etr0": 4.0})
    assert list(cells.loc[found.index[found[REACHED] == 0], "run"]) == ["etr2"]


def test_the_curve_is_found_again():
    steps = [0, 8, 16, 24, 32, 48, 64, 96]
    passed = [0.2] + [0.2 + 0.6 / (1 + (20 / c) ** 2) for c in steps[1:]]
    found = board.fit(steps, passed)
    asked = {"asymptote": 0.8, "midpoint": 20, "exponent": 2}
    assert {name: found[name] for name in asked} == pytest.approx(asked, rel=1e-3)
    assert found["share"] == pytest.approx(1 / (1 + (20 / 96) ** 2), rel=1e-3) and found["bends"]
    assert board.fit([0, 8, 16], [0.1, 0.2, 0.3]) == {}
    assert board.fit([0, 8, 16, 24, 32], [0.4, 0.3, 0.3, 0.3, 0.3]) == {}


def test_a_square_has_the_seeds_of_equal_configs_and_its_collapsed_runs():
    clean = {**REGIME, "column": "clean"}
    noise = {**clean, "column": "noise", "arms": {"grpo": {}, "grpo, token IS": {}}}
    plan = study(headline=REGIME, clean=clean, noise=noise)
    found = pd.concat(
        [
            runs({"grpo": (0.4, 0.2, 0.3)}, "headline"),  # its grpo is the clean column's
            runs({"grpo": (0.4, 0.2), "etr": (0.14, 0.4)}, "clean"),
            runs({"grpo, token IS": (0.4, 0.3)}, "noise"),
        ],
        ignore_index=True,
    )
    found["entropy/exact"] = 0.2
    found.loc[(found["arm"] == "etr") & (found["seed"] == 1), "entropy/exact"] = 0.01
    found["collapse step"] = found["run"].map({"etr0": 7, "etr1": 9})
    found["failed"] = found["run"].map({"grpo, token IS0": "no number"})
    table = survival.squares(plan, found).set_index(["method", "correction"])
    square = table.loc["grpo", "none"]
    assert (square["runs"], square["collapsed"]) == (3, 0)
    half = 4.3026527 * 0.1 / math.sqrt(3)
    assert square[["pass@1", "low", "high"]].tolist() == pytest.approx(
        [0.3, 0.3 - half, 0.3 + half]
    )
    assert table.loc["etr", "none"][["collapsed", "collapse step"]].tolist() == [2, 8]
    assert table.loc["grpo", "token IS"]["collapsed"] == 1
    assert survival.caption(table.loc["etr", "none"]).endswith("\nx 2 of 2: 8")


@pytest.mark.parametrize("delta", [1e-4, 0.01])
def test_the_advantage_of_a_right_response(delta):
    """e^A is the weight that the tilt gives: its mean is 1, and mean(e^A A) = delta."""
    for right, a in enumerate(figures.right_advantages(8, delta), 1):
        p = right / 8
        wrong = (1 - p * math.exp(a)) / (1 - p)  # e^A of a wrong one
        assert p * a * math.exp(a) + (1 - p) * wrong * math.log(wrong) == pytest.approx(delta)


def test_a_folder_becomes_its_tables(tmp_path):
    """Of cells.csv, results.csv and paths.csv alone: no id is computed again."""
    cells = runs({"grpo": (0.1, 0.2, 0.6), "etr": (0.2, 0.4, 0.9)})
    cells[["regime", "arm", "seed", "run", "base"]].to_csv(tmp_path / "cells.csv", index=False)
    results = cells[["run", "seed", "pass@1"]].rename(columns={"run": "id"})
    results.to_csv(tmp_path / "results.csv", index=False)
    ends = [
        path((0, 0.1, 1.0), (8, cell[6], 0.5)).assign(run=cell.run) for cell in cells.itertuples()
    ]
    pd.concat(ends).to_csv(tmp_path / "paths.csv", index=False)
    (tmp_path / "study.json").write_text(json.dumps(study(path=8)))
    found = report.show(tmp_path, draw=False)
    assert of(found, "etr")["difference"] == pytest.approx(0.2)
    rows = pd.read_csv(tmp_path / "board.csv").set_index("arm")
    assert (
        rows.loc["etr", "pass@1, difference"] == 0.2 and rows.loc["etr", "settings"] == "micro=0.05"
    )
    assert "| etr | 3 | 0.500 ± " in (tmp_path / "report.md").read_text()
