"""The figure of what a study has confirmed: which points are filled, and which are squares."""

import math
from contextlib import contextmanager
from unittest.mock import MagicMock

from nemo_algos.lab.study import differences
from nemo_algos.lab.study.design import Study
from nemo_algos.lab.study.summary import ArmResult, estimate

ARMS = {"GRPO": {}, "ETR": {}, "ERPO": {}}
REGIME = {"claim": "c", "baseline": "GRPO", "arms": ARMS, "seeds": 3}
STUDY = {
    "regimes": {"fixed": REGIME, "explored": REGIME | {"exploratory": True}},
    "confirm": {"arms": ["ETR"], "metrics": ["pass@1"]},
}
GAPS = {"GRPO": (estimate([0.0] * 3), math.nan), "ETR": (estimate([0.1, 0.2, 0.3]), 0.04)}
GAPS["ERPO"] = (estimate([-0.1, 0.1, 0.3]), math.nan)


def test_a_panel_has_a_point_per_arm(tmp_path, monkeypatch):
    axis, asked = MagicMock(), []

    @contextmanager
    def save(path, _, columns, **options):
        asked.append((path, columns))
        yield MagicMock(), [axis]

    monkeypatch.setattr(differences, "save", save)
    found = [
        ArmResult(regime, arm, "pass@1", estimate([0.5] * 3), *gap)
        for regime in ("fixed", "explored")
        for arm, gap in GAPS.items()
    ]
    differences.draw(Study.model_validate(STUDY), found, tmp_path)
    assert asked == [(tmp_path / "figures" / "differences.png", 1)]
    points = [call for call in axis.plot.call_args_list if len(call.args) == 3]
    assert [(round(c.args[0], 9), *c.args[1:]) for c in points] == [
        (0.0, 0, "o"),
        (0.2, 1, "s"),  # Holm's p .04; 0.2 -+ 4.30 * 0.1 / sqrt(3) includes 0
        (0.1, 2, "o"),
    ]
    assert {c.kwargs["mfc"] for c in points} == {"white"}
    without = {"regimes": STUDY["regimes"]}
    differences.draw(Study.model_validate(without), found, tmp_path)
    assert len(asked) == 1
