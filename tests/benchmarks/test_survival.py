"""The survival map: its squares by hand, and what the figure writes into them."""

import csv

import pytest
import report
import survival
from collapse import collapse_step
from design import Regime, Study, StudyCell
from summary import estimate

BESIDE = {"claim": "-", "baseline": "GRPO", "seeds": 2}
STUDY = Study(
    regimes={
        "headline": Regime(**BESIDE, arms={"GRPO": {}, "whatever": {}}),
        "none": Regime(**BESIDE, column="clean", arms={"GRPO": {}, "ETR": {}}),
        "noise": Regime(
            **BESIDE,
            column="noise .3",
            arms={"GRPO": {}, "GRPO, token IS": {}, "ETR": {}, "ETR, token IS": {}},
        ),
    }
)
# the headline's GRPO is the clean column's, with a seed more
CELLS = [
    *(StudyCell("headline", "GRPO", seed, f"a{seed}") for seed in range(3)),
    *(StudyCell("none", "GRPO", seed, f"a{seed}") for seed in range(2)),
    *(StudyCell("none", "ETR", seed, f"b{seed}") for seed in range(2)),
    *(StudyCell("noise", "GRPO, token IS", seed, f"c{seed}") for seed in range(2)),
    *(StudyCell("noise", "ETR, token IS", seed, f"d{seed}") for seed in range(2)),
]


def row(passed, entropy=0.2, **more):
    return {"pass@1": passed, "entropy/exact": entropy, "reward/mean": 0.5, **more}


ROWS = {
    "a0": row(0.4, **{"mismatch/mean": 0.0}),
    "a1": row(0.2, **{"mismatch/mean": 0.0}),
    "a2": row(0.3, **{"mismatch/mean": 0.0}),
    "b0": row(0.14, **{"collapse step": 7}),
    "b1": row(0.4, 0.01, **{"collapse step": 9}),
    "c0": row(0.4, failed="no number"),
    "d0": row(0.3),
    "d1": row(0.3),
}


@pytest.fixture(scope="module")
def found():
    return survival.squares(STUDY, CELLS, ROWS)


def test_equal_configs_are_one_square_with_all_their_seeds(found):
    clean = found["clean", "GRPO", "none"]
    assert clean.passed == estimate([0.4, 0.2, 0.3]) and clean[:3] == (3, 0, [])
    assert clean.means == {"entropy": pytest.approx(0.2), "reward": 0.5, "mismatch": 0.0}
    assert set(found) == {
        ("clean", "GRPO", "none"),
        ("clean", "ETR", "none"),
        ("noise .3", "GRPO", "token IS"),
        ("noise .3", "ETR", "token IS"),
    }


def test_a_run_collapses_in_reward_in_entropy_or_with_an_error(found):
    assert found["clean", "ETR", "none"][1:3] == (2, [7, 9])
    assert found["noise .3", "GRPO", "token IS"][1:3] == (1, [])  # nobody kept its steps
    assert found["noise .3", "ETR", "token IS"][1:3] == (0, [])


@pytest.mark.parametrize(
    ("rewards", "entropies", "step"),
    [
        ([0.3, 0.1, 0.3, 0.1, 0.1], [0.2] * 5, 3),  # it recovers once
        ([0.3] * 4, [0.2, 0.019, 0.019, 0.0], 1),
        ([0.1, 0.1], [0.2, 0.2], 0),
        ([0.3, 0.3], [0.2, 0.2], 2),  # the trained weights alone collapsed, or the loss broke off
    ],
)
def test_a_collapse_begins_where_it_lasts(rewards, entropies, step):
    pairs = zip(rewards, entropies, strict=True)
    steps = [{"reward/mean": reward, "entropy/exact": entropy} for reward, entropy in pairs]
    assert collapse_step(steps) == step


def test_a_square_says_its_mean_interval_and_runs(found):
    assert survival.caption(found["clean", "GRPO", "none"]) == "0.30 ±0.25\nn 3"
    assert survival.caption(found["noise .3", "GRPO", "token IS"]) == "0.40\nx 1 of 1"
    assert survival.caption(found["clean", "ETR", "none"]).endswith("\nx 2 of 2: 8")
    assert survival.caption(found["noise .3", "ETR", "token IS"]) == "0.30 ±0.00\nn 2"


def test_the_figure_has_each_square_once(found, monkeypatch, tmp_path):
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: figures.append(figure))
    survival.draw(found, tmp_path / "map.png")
    below, above = figures[0].axes
    texts = [[text.get_text() for text in axis.texts] for axis in (above, below)]
    assert texts == [
        [survival.caption(found["clean", m, "none"]) for m in ("GRPO", "ETR")],
        [survival.caption(found["noise .3", m, "token IS"]) for m in ("GRPO", "ETR")],
    ]
    labels = [text.get_text() for text in above.get_xticklabels()]
    assert labels == ["clean\n0.000 nats", "noise .3\n"]
    assert below.get_title("left") == "Corrections of noise .3"


def test_a_study_with_columns_has_a_map(found, tmp_path, monkeypatch):
    monkeypatch.setattr(survival, "draw", lambda squares, path: None)
    for name in ("draw", "draw_draws", "draw_tradeoffs", "draw_steps", "draw_advantages"):
        monkeypatch.setattr(report, name, lambda *_: None)
    monkeypatch.setattr(report, "results", lambda _: ROWS)
    report.show(STUDY, CELLS, "T", tmp_path)
    with open(tmp_path / "map.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found)
    assert "![The survival map](figures/map.png)" in (tmp_path / "report.md").read_text()
    assert rows[0]["pass@1"] == "0.3" and rows[0]["runs"] == "3" and rows[0]["mismatch"] == "0"
    assert rows[1]["collapsed"] == "2" and rows[1]["collapse step"] == "8"
    assert rows[1]["mismatch"] == ""
