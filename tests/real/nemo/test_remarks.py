"""A run of NeMo-RL's grpo_train that dies is told so, by the metrics that NeMo-RL logs."""

from pathlib import Path
from typing import Any

import cpu_task
import pytest
from launched import launched

pytestmark = pytest.mark.usefixtures("in_process")
DIES = 2  # the last step with rewards


def test_rewards_that_end_are_told_once_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = cpu_task.OddTokens.step
    calls: list[int] = []

    def dying(self: Any, *args: Any) -> Any:
        found = step(self, *args)
        calls.append(1)
        return found._replace(rewards=found.rewards * (len(calls) <= DIES))

    monkeypatch.setattr(cpu_task.OddTokens, "step", dying)
    launched(tmp_path, monkeypatch, steps=6)
    lines = capsys.readouterr().out.splitlines()
    (warning,) = (line for line in lines if line.startswith("warning: "))
    assert warning.startswith("warning: step 5: since step 3 the mean reward is 0")
    trained = "This run trained 6 steps, 1 to 6 of 6 planned."
    (last,) = (line for line in lines if line.startswith(trained))
    assert "Warnings: 1. step 5: since step 3" in last


def test_a_healthy_run_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = launched(tmp_path, monkeypatch, steps=6)
    assert "warning: " not in capsys.readouterr().out
    shares = [metrics["groups/flat_share"] for metrics in run.logger.kept["train"].values()]
    assert len(shares) == 6 and all(0 <= share < 1 for share in shares)
