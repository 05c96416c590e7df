"""nemo-algos export: what a run of countdown starts from, for another engine."""

import json
import random

import pytest
from typer.testing import CliRunner

from nemo_algos import config
from nemo_algos.cli import app
from nemo_algos.config import SHIPPED
from nemo_algos.engines.data import countdown, puzzles
from nemo_algos.engines.data.tasks import Puzzles
from nemo_algos.engines.local import tiny_policy
from nemo_algos.preflight.check.local.judge import parse

RECIPE = "recipes/cpu/countdown.yaml"


def run(*words):
    return CliRunner().invoke(app, ["export", *map(str, words)])


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_model_and_the_problems_of_all_steps_in_their_order(monkeypatch, tmp_path):
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tiny_policy, "WARM_STEPS", 1)
    folder = tmp_path / "start"
    for _ in range(2):  # the second time over the first
        done = run(RECIPE, folder, "grpo.max_num_steps=3", "grpo.max_val_samples=5")
        assert done.exit_code == 0, done.output
    written, _ = parse(config.load(SHIPPED / RECIPE))
    task = Puzzles(written.data, written.grpo.seed)
    asked = [p for step in range(3) for p in task.examples(step, written.grpo.num_prompts_per_step)]
    kept = {"train": asked, "validation": task.held_out(5)}
    for name, examples in kept.items():
        pairs = [{"problem": f"{p} :", "answer": str(p)} for p in examples]
        assert rows(folder / f"{name}.jsonl") == pairs and pairs
    shape = json.loads((folder / "model" / "config.json").read_text())
    assert shape["hidden_size"] // shape["num_attention_heads"] == 32
    puzzle, response = puzzles.sample(random.Random(0), written.data.rules)
    solved = countdown.decode(response[:-1])
    assert countdown.verify(solved, str(puzzle)) == 1.0
    assert countdown.verify(solved, str(task.held_out(1)[0])) == 0.0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["smollm2.yaml"], "files"),
        (["etr.yaml", "data.task=sums"], "data.task"),
        (["nemo_rl.yaml"], "engine: input should be 'local', got 'nemo_rl'"),
        (["etr.yaml", "method.mikro=1"], "method.mikro: unknown key"),
    ],
)
def test_what_has_nothing_to_export(tmp_path, words, reason):
    config_name, *overrides = words
    done = run(config_name, tmp_path / "start", *overrides)
    assert done.exit_code == 2 and reason in done.stderr
    assert not (tmp_path / "start").exists()
