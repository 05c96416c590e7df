"""nemo-algos export card: what the page says is the run's, and its config makes the run again."""

import json
import re

import pytest
import yaml
from typer.testing import CliRunner

from nemo_algos.cli import app
from nemo_algos.config import SHIPPED, load
from nemo_algos.preflight.check.local.judge import parse

METRICS = [{"step": step, "reward/mean": 0.1 * step} for step in (1, 2, 3)]


def to_json(checked):
    return checked.model_dump(mode="json")


@pytest.fixture
def run(tmp_path):
    """A run of ETR that ended, with data of this machine and a tracker."""
    words = ["method.micro=0.05", "grpo.max_num_steps=3", "logger.wandb.entity=me"]
    checked, _ = parse(load(SHIPPED / "etr.yaml", words))
    folder = tmp_path / "exp_001"
    (folder / "model").mkdir(parents=True)
    manifest = {"config": to_json(checked), "git": "abc123", "versions": {"torch": "2.9"}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in METRICS))
    summary = {"steps": 3, "before": {"pass@1": 0.25}, "after": {"pass@1": 0.5}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def written(folder):
    done = CliRunner().invoke(app, ["export", "card", str(folder)])
    assert done.exit_code == 0, done.output
    return (folder / "model/README.md").read_text()


def test_the_card_has_the_runs_numbers_and_a_config_that_makes_it_again(run, tmp_path):
    text = written(run)
    header = yaml.safe_load(text.split("---")[1])
    assert header["tags"] == ["nemo-algos", "reinforcement-learning", "etr"]
    assert "base_model" not in header  # a built-in model
    assert "| pass@1 | 0.250 | 0.500 |" in text and "after 3 steps of 512 responses" in text
    config = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1]
    (tmp_path / "config.yaml").write_text(config)
    again, _ = parse(load(tmp_path / "config.yaml", []))
    wanted = json.loads((run / "manifest.json").read_text())["config"]
    del wanted["logger"]
    assert {k: v for k, v in to_json(again).items() if k in wanted} == wanted


def test_nothing_of_the_machine_or_of_trackers_is_in_it(run):
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["config"]["policy"]["model_name"] = "/home/me/models/Qwen3-0.6B"
    manifest["config"]["data"]["train"] = {"data_path": "/home/me/rows.jsonl"}
    (run / "manifest.json").write_text(json.dumps(manifest))
    text = written(run)
    assert "/home" not in text and "entity" not in text
    assert "`Qwen3-0.6B` after" in text and "data_path: rows.jsonl" in text


def test_a_hub_model_is_the_base_of_the_card(run):
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["config"]["policy"]["model_name"] = "Qwen/Qwen3-0.6B"
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert yaml.safe_load(written(run).split("---")[1])["base_model"] == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("config", [{}, {"method": {"name": "etr"}, "grpo": {"seed": 42}}])
def test_a_run_without_a_whole_record_is_refused(run, config):
    """TRL's adapter records the method alone."""
    (run / "manifest.json").write_text(json.dumps({"config": config}))
    done = CliRunner().invoke(app, ["export", "card", str(run)])
    assert done.exit_code == 2 and "has no record of its whole config" in done.output
