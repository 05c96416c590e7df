"""The task of docs/local_engine.md trains the countdown model; a folder may not bring its own."""

import json
import re
from pathlib import Path

import pytest
from commands import invoke

from nemo_algos.engines.local import manifest, tiny_policy

PAGE = Path(__file__).parents[3] / "docs" / "local_engine.md"


@pytest.fixture
def ending(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "ending.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(tiny_policy, "WARM_STEPS", 60)
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path))
    steps = ["grpo.max_num_steps=2", f"logger.log_dir={tmp_path / 'runs'}"]
    overrides = ["data.task=ending:Ending", *steps, "logger.tensorboard_enabled=false"]
    assert invoke("train", "grpo.yaml", *overrides).exit_code == 0
    return tmp_path / "runs" / "exp_001"


def test_it_trains_and_a_resume_asks_before_it_loads_it(ending):
    rows = [json.loads(line) for line in (ending / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and all(0 <= row["reward/mean"] < 1 for row in rows)
    assert max(row["reward/mean"] for row in rows) > 0
    assert (ending / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((ending / "summary.json").read_text())["after"] == {}  # nothing held out
    assert manifest.foreign(manifest.read(ending / "manifest.json")) == {
        "data.task": "ending:Ending"
    }
    refused = invoke("train", "--resume", ending)
    assert refused.exit_code == 2
    assert "data.task: ending:Ending " in refused.stderr
    assert invoke("train", "--resume", ending, "data.task=ending:Ending").exit_code == 0


@pytest.mark.parametrize("task", ["os:system", "nemo_algos.engines.data.tasks:Puzzles", "${x}"])
def test_a_task_that_a_folder_names_is_code(task):
    assert manifest.foreign({"data": {"task": task}}) == {"data.task": task}
    assert manifest.foreign({"data": {"task": "math"}}) == {}
