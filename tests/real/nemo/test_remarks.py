"""A run of NeMo-RL's grpo_train that dies is told so, by the metrics that NeMo-RL logs.

The same of its other trainers: test_async.py, test_data_plane.py and tests/real/stack.
"""

from pathlib import Path
from typing import Any

import cpu_task
import pytest
import torch
from launched import launched

pytestmark = pytest.mark.usefixtures("in_process")
DIES, RESPONSES = 2, 16  # the last step with rewards; of a step


def rewards_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """All responses after those of two steps are worth nothing."""
    step = cpu_task.OddTokens.step
    seen: list[int] = []

    def dying(self: Any, *args: Any) -> Any:
        found = step(self, *args)
        alive = torch.arange(len(found.rewards)) + len(seen) < DIES * RESPONSES
        seen.extend(range(len(found.rewards)))
        return found._replace(rewards=found.rewards * alive)

    monkeypatch.setattr(cpu_task.OddTokens, "step", dying)


def assert_told(printed: str) -> None:
    """Once while it trains, and in its last words."""
    lines = printed.splitlines()
    (warning,) = (line for line in lines if line.startswith("warning: ") and "reward" in line)
    assert warning.startswith("warning: step 5: since step 3 the mean reward is 0")
    trained = "This run trained 6 steps, 1 to 6 of 6 planned."
    (last,) = (line for line in lines if line.startswith(trained))
    assert "step 5: since step 3 the mean reward is 0" in last


def test_rewards_that_end_are_told_once_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rewards_end(monkeypatch)
    launched(tmp_path, monkeypatch, steps=6)
    assert_told(capsys.readouterr().out)


def test_a_healthy_run_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = launched(tmp_path, monkeypatch, steps=6)
    assert "warning: " not in capsys.readouterr().out
    shares = [metrics["groups/flat_share"] for metrics in run.logger.kept["train"].values()]
    assert len(shares) == 6 and all(0 <= share < 1 for share in shares)
