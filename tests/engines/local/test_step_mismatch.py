"""The embedded engine logs how far its sampler is from its trainer, and stops at the limit."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import trainers
from says import Says
from typer.testing import CliRunner

from nemo_algos import config
from nemo_algos.cli import app
from nemo_algos.engines.local import tiny_policy
from nemo_algos.engines.local.tiny_policy import TinyPolicy
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.findings import ConfigError
from nemo_algos.preflight.check.local.judge import parse

SMALL = ["grpo.max_num_steps=4", "grpo.max_val_samples=4", "grpo.val_samples_per_prompt=4"]


def of(metrics):
    return {k: v for k, v in metrics.items() if k.startswith("mismatch/")}


def test_a_sampler_that_says_half_the_probability_is_log_2_away():
    metrics = of(trainers.trainer(trained=trainers.mismatched()).step())
    assert metrics.pop("mismatch/nonfinite") == 0 and metrics.pop("mismatch/share_above") == 1
    assert set(metrics) == {"mismatch/mean", "mismatch/p99", "mismatch/max"}
    assert list(metrics.values()) == pytest.approx([math.log(2)] * 3, abs=1e-5)


def test_beyond_the_limit_nothing_is_trained():
    made = trainers.trainer("mismatch.stop_above=0.6", trained=trainers.mismatched())
    before = trainers.weights(made)
    with pytest.raises(FloatingPointError, match=r"mean 0\.693"):
        made.step()
    assert torch.equal(trainers.weights(made), before) and made.step_number == 0
    trainers.trainer("mismatch.stop_above=0.7", trained=trainers.mismatched()).step()


def test_a_stop_ends_the_run_with_status_1_and_its_checkpoint(tmp_path, monkeypatch):
    """From the third step the sampler is wrong; the run stands as the second step left it."""
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tiny_policy, "WARM_STEPS", 2)
    step, generate = Trainer.step, TinyPolicy.generate

    def off_by_one(self, prompts, group_size, generator):
        drawn = generate(self, prompts, group_size, generator)
        return replace(drawn, gen_logprobs=drawn.logprobs - 1)

    def third_step_goes_wrong(self):
        if self.step_number == 2:
            monkeypatch.setattr(TinyPolicy, "generate", off_by_one)
        return step(self)

    monkeypatch.setattr(Trainer, "step", third_step_goes_wrong)
    folder = tmp_path / "run"
    settings = [*SMALL, "mismatch.stop_above=0.05", "checkpointing.save_period=2"]
    settings += ["logger.tensorboard_enabled=false", f"logger.log_dir={folder}", "mismatch.dump=9"]
    done = CliRunner().invoke(app, ["train", "grpo.yaml", *settings])
    assert done.exit_code == 1 and "stop_above=0.05" in done.stderr
    number, dump = re.search(
        r"^step (\d): .* nemo-algos mismatch (\S+)$", done.stderr, re.M
    ).groups()
    assert number == "3" and Path(dump).name == "step_000003.npz" and Path(dump).is_file()
    lines = (folder / "exp_001" / "metrics.jsonl").read_text().splitlines()[1:]  # evaluated before
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert max(json.loads(line)["mismatch/mean"] for line in lines) < 1e-4
    kept = [path.name for path in (folder / "exp_001" / "checkpoints").iterdir()]
    assert kept == ["step_000002.pt"]


@pytest.mark.parametrize(
    ("override", "path", "message"),
    [
        ("mismatch.treshold=1", "mismatch.treshold", "threshold"),
        ("mismatch.stop_above=0", "mismatch.stop_above", "0"),
        ("mismatch.threshold=nan", "mismatch.threshold", "nan"),
        ("mismatch.threshold=x", "mismatch.threshold", "number"),
        ("mismatch=3", "mismatch", "3"),
    ],
)
def test_a_wrong_section_is_refused(override, path, message):
    with pytest.raises(ConfigError) as error:
        parse(config.load(trainers.CONFIGS / "grpo.yaml", [override]))
    (problem,) = error.value.findings
    assert problem[:2] == (path, Says(message))


class Drifting(trainers.Mismatched):
    """Its sampler's log-probs are off by 0.06 nats from the third step on."""

    steps = 0

    def generate(self, prompts, group_size, generator):
        drawn = super().generate(prompts, group_size, generator)
        self.steps += 1
        return replace(drawn, gen_logprobs=drawn.logprobs - 0.06 * (self.steps > 2))


def test_a_level_is_said_with_the_step():
    made = trainers.trainer(trained=Drifting(trainers.policy().model, trainers.UP_TO_12))
    said = []
    for _ in range(5):
        made.step()
        said += made.said
    assert [s for s in said if "mismatch" in s] == [Says("step 3: mismatch/mean is 0.06 0.05")]
