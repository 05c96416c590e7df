"""A study's report, figures of steps and draws, and QUATRO's figure 2."""

import json
import math

import figures
import pytest
import report
from design import Study, StudyCell, Tuning
from summary import ArmResult, Estimate
from tuning import sweeps

STUDY = Study.model_validate(
    {
        "regimes": {
            "r": {
                "claim": "etr is better",
                "baseline": "grpo",
                "arms": {"grpo": {}, "etr": {}},
                "seeds": 3,
                "first_seed": 7,
                "settings": {"grpo.num_update_epochs": 2},
            }
        }
    }
)
SAME = Estimate(3, 0.0, 0.0, 0.0, math.nan)
RESULTS = [
    ArmResult("r", "grpo", "pass@1", Estimate(3, 0.5, 0.4, 0.6, 0.01), SAME),
    ArmResult(
        "r", "etr", "pass@1", Estimate(3, 0.7, 0.65, 0.75, 0.01), Estimate(3, 0.2, 0.1, 0.3, 0)
    ),
    ArmResult(
        "r", "etr", "entropy", Estimate(1, 0.3, *[math.nan] * 3), Estimate(0, *[math.nan] * 4)
    ),
]


def test_the_tables(tmp_path):
    report.write(STUDY, RESULTS, "T", tmp_path / "report.md")
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert lines[0] == "# T"
    assert (
        "Baseline grpo, seeds 7 to 9, fixed beforehand. Settings: `grpo.num_update_epochs=2`."
        in lines
    )
    grpo, etr = (line for line in lines if line.startswith(("| grpo", "| etr")))
    assert lines[lines.index(grpo) - 2] == "| arm | pass@1 | entropy |"
    assert grpo == "| grpo | 0.500 ± 0.100 | - |"
    assert etr == "| etr | 0.700 ± 0.050<br>**+0.200 ± 0.100** | 0.300 |"


def test_runs_are_counted_where_some_are_missing_and_equal_metrics_left_out(tmp_path):
    found = [
        ArmResult("r", arm, metric, Estimate(n, mean, mean, mean, 1.0), SAME)
        for arm, n in (("grpo", 3), ("etr", 2))
        for metric, mean in (("reward", 0.1 * n), ("length of right", 12.0))
    ]
    report.write(STUDY, found, "T", tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert "| arm | n | reward |\n" in text and "\n| etr | 2 | 0.200" in text


def test_a_title_is_the_sections_and_the_sweeps(tmp_path):
    regime = STUDY.regimes["r"].model_copy(update={"title": "8 updates"})
    titled = STUDY.model_copy(update={"regimes": {"r": regime}})
    report.write(titled, RESULTS, "T", tmp_path / "report.md")
    assert "\n## 8 updates (r)\n\nClaim: etr is better.\n" in (tmp_path / "report.md").read_text()
    tune = Tuning(grid={"policy.optimizer.kwargs.lr": [1, 2]})
    regimes = {"r": regime.model_copy(update={"tune": tune})}
    regimes["s"] = regimes["r"].model_copy(update={"title": ""})
    swept = sweeps(STUDY.model_copy(update={"regimes": regimes})).regimes
    assert [r.title for r in swept.values()] == ["8 updates, tuning", "tuning"]


def test_figures_are_drawn_of_what_there_is(tmp_path):
    (tmp_path / "raw").mkdir()
    steps = [{"reward/mean": 0.5, "clip/fraction": 0.0}] * 12
    for name in ("g7", "g8", "e7"):
        raw = "".join(json.dumps(s) + "\n" for s in steps)
        (tmp_path / "raw" / f"{name}.jsonl").write_text(raw)
    cells = [
        StudyCell("r", "grpo", 7, "g7"),
        StudyCell("r", "grpo", 8, "g8"),
        StudyCell("r", "etr", 7, "e7"),
    ]
    figures.draw(STUDY, RESULTS, tmp_path)
    figures.draw_draws(STUDY, RESULTS, tmp_path)
    figures.draw_steps(STUDY, [*cells, StudyCell("r", "etr", 8, "missing")], tmp_path)
    drawn = {str(p.relative_to(tmp_path / "figures")) for p in tmp_path.rglob("*.png")}
    assert drawn == {"r.png", "r_draws.png", "r/etr.png"}


def test_a_line_of_values_per_arm(tmp_path, monkeypatch):
    (tmp_path / "figures").mkdir()
    drawn = []
    from matplotlib.axes import Axes

    plot = Axes.plot
    monkeypatch.setattr(
        Axes, "plot", lambda *a, **k: drawn.append((*a[1:3], k.get("label"))) or plot(*a, **k)
    )
    tune = {"grid": {"grpo.max_num_steps": [1, 2]}, "rounds": [{"seeds": 2}]}
    regime = {"claim": "-", "baseline": "grpo", "arms": {"grpo": {}, "etr": {}}}
    study = Study.model_validate({"regimes": {"r": {**regime, "tune": tune, "first_seed": 2}}})
    numbers = enumerate(
        f"{arm} max_num_steps={n}" for arm, n in (("grpo", 1), ("grpo", 2), ("etr", 1))
    )  # etr 2 is not there yet
    results = [
        ArmResult("r_tuning", arm, metric, Estimate(3, i + shift, 0, 0, 0), SAME)
        for i, arm in numbers
        for metric, shift in (("pass@1", 0.0), ("UCC@64", 0.5))
    ]
    figures.draw_tradeoffs(study, results, tmp_path)
    assert drawn[::2] == [([0, 1], [0.5, 1.5], "grpo"), ([2], [2.5], "etr")]
    assert drawn[1::2] == [([0], [0.5], None), ([2], [2.5], None)]  # the first value's
    assert (tmp_path / "figures" / "r_tuning_tradeoff.png").exists()


@pytest.mark.parametrize("delta", [1e-4, 0.01])
def test_the_advantage_of_a_right_response(delta):
    """e^A is the weight that the tilt gives: its mean is 1, and mean(e^A A) = delta."""
    for right, a in enumerate(report.right_advantages(8, delta), 1):
        p = right / 8
        wrong = (1 - p * math.exp(a)) / (1 - p)  # e^A of a wrong one
        assert p * a * math.exp(a) + (1 - p) * wrong * math.log(wrong) == pytest.approx(delta)


def test_it_falls_as_more_are_right_and_with_delta():
    small, large = (report.right_advantages(8, delta) for delta in (0.01, 0.1))
    assert small == sorted(small, reverse=True) and len(small) == 7
    assert all(a < b for a, b in zip(small, large, strict=True))
