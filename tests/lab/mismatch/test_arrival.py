"""Whether weights arrive: from two dumps without a model, and in the second step of a run."""

import json
import re
from zlib import crc32

import numpy as np
import pytest
from commands import invoke
from short_runs import short_warm_start  # noqa: F401

from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.engines.data.tasks import Puzzles
from nemo_algos.engines.dumps.arrival import compared
from nemo_algos.engines.dumps.dump import from_arrays, read
from nemo_algos.engines.local.tiny_policy import SeparateSampler
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.engines.rewards import Verdict
from nemo_algos.findings import ConfigError, validate
from nemo_algos.lab.mismatch.verdict import diagnose

PROMPT, ROWS, WIDTH = 4, 24, 12


def dump(trainer, sampler, rounding, seed=0, prompts=0):
    """Responses to a few prompts; a side's log-prob is a number of the ids and of its weights."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 2, (ROWS, PROMPT + WIDTH))
    tokens[:, :PROMPT] = np.random.default_rng(prompts).integers(0, 9, (4, PROMPT)).repeat(6, 0)
    sides = {}
    for name, weights in (("trainer_logprobs", trainer), ("sampler_logprobs", sampler)):
        noise = rounding * rng.standard_normal(tokens.shape) * (name == "trainer_logprobs")
        sides[name] = noise - 20
        for i, at in np.ndindex(tokens.shape):
            sides[name][i, at] += _moved(tokens[i, : at + 1], weights)
    mask = np.arange(PROMPT + WIDTH) >= np.full((ROWS, 1), PROMPT)
    return from_arrays({"tokens": tokens, "mask": mask, "prompt_length": PROMPT, **sides})


def _moved(ids, weights):
    fixed = np.random.default_rng(crc32(ids.tobytes())).standard_normal(8)
    return float(fixed @ weights)


START = np.zeros(8)
STEP = np.full(8, 0.01)
HALF = STEP * (np.arange(8) < 4)


@pytest.mark.parametrize(
    ("sampler", "rounding", "state"),
    [
        (START, 0.0, "none"),
        (START, 1e-4, "none"),
        (STEP, 0.0, ""),
        (STEP, 1e-4, ""),
        (STEP + 1e-7, 0.0, ""),
        (HALF, 0.0, "part"),
        (HALF, 1e-4, "part"),
        (HALF, 0.1, ""),
        (START, 0.1, ""),
    ],
)
def test_two_dumps_say_whether_weights_arrive(sampler, rounding, state):
    """Rounding as large as the step hides all."""
    before, after = dump(START, START, rounding), dump(STEP, sampler, rounding, seed=1)
    found = compared(before, after)
    assert found.state == state and bool(found.sentence) == bool(state)
    assert found.contexts >= 8
    assert found.rounding == pytest.approx(rounding * (2 / np.pi) ** 0.5, rel=0.3, abs=1e-9)
    verdict = diagnose([before, after])
    assert (verdict.verdict == "old_weights") == (state == "none")
    assert (verdict.candidates[:1] == ["partial_weights"]) == (state == "part")


def test_a_trainer_that_stands_still_says_nothing():
    assert compared(dump(STEP, STEP, 0.0), dump(STEP, STEP, 0.0, seed=1)).state == ""


def test_other_prompts_say_nothing():
    found = compared(dump(START, START, 0.0), dump(STEP, START, 0.0, seed=1, prompts=7))
    assert found.contexts == 0 and found.state == ""


@pytest.fixture(autouse=True)
def some_are_right(monkeypatch):
    """The policy knows nothing after so short a warm start: no step would move it."""

    def verify(self, examples, responses):
        return [Verdict(float(len(response) % 2), "ok") for response in responses]

    monkeypatch.setattr(Puzzles, "verify", verify)


def run(folder, *overrides):
    given = [f"logger.log_dir={folder}", "mismatch.probe=3", "grpo.max_num_steps=4"]
    given += ["logger.tensorboard_enabled=false", "grpo.max_val_samples=4", "grpo.val_period=0"]
    given += ["grpo.val_samples_per_prompt=4", "grpo.num_prompts_per_step=8"]
    given += ["policy.train_global_batch_size=32", *overrides]
    return invoke("train", "grpo.yaml", *given)


def train(folder, *overrides):
    result = run(folder, *overrides)
    assert result.exit_code == 0, result.output
    (metrics,) = folder.glob("exp_*/metrics.jsonl")
    return result.output, [json.loads(line) for line in metrics.read_text().splitlines()]


def said(output):
    """The steps whose remark names the sampler's weights."""
    lines = " ".join(output.split())
    return [n for n in range(1, 5) if f"step {n}: new weights" in lines]


class Never(SeparateSampler):
    """A sampler that stays as it was before the first update."""

    def refit(self):
        pass


class Half(SeparateSampler):
    """A sampler of which only the first layer is updated."""

    def refit(self):
        new = self.trained.model.state_dict()
        part = {name: weight for name, weight in new.items() if "layers.0" in name}
        self.model.load_state_dict(part, strict=False)


@pytest.fixture
def sampled_by(monkeypatch):
    """Lets a run's rollouts come from this kind of sampler."""

    def give(kind):
        monkeypatch.setattr(Trainer, "build_sampler", lambda trainer: kind(trainer.policy))

    return give


def test_a_sampler_that_is_never_updated_is_named_in_the_second_step(tmp_path, sampled_by):
    sampled_by(Never)
    output, _ = train(tmp_path)
    assert said(output) == [2]
    probes = sorted(tmp_path.glob("exp_*/probe/*.npz"))
    assert [path.stem for path in probes] == ["step_000001", "step_000002", "step_000003"]
    first, last = (read(path) for path in probes[::2])
    np.testing.assert_array_equal(first.sampler_logprobs, last.sampler_logprobs)
    assert diagnose([first, last]).verdict == "old_weights"


def test_a_sampler_of_which_half_is_updated_is_named_in_the_second_step(tmp_path, sampled_by):
    sampled_by(Half)
    output, _ = train(tmp_path)
    assert said(output) == [2]
    left, every = map(int, re.search(r"(\d+) of the sampler's (\d+)", output).groups())
    assert 0 < left < every and "layers.1" in output and "layers.0" not in output


@pytest.mark.parametrize("overrides", [[], ["policy.precision=mxfp8"]])
def test_a_sampler_that_is_updated_is_not_named(tmp_path, overrides):
    output, metrics = train(tmp_path, *overrides)
    assert said(output) == []
    moved = [line for line in metrics if "mismatch/probe_trainer" in line]
    assert len(moved) == 2
    assert all(line["mismatch/probe_sampler"] > 1e-4 for line in moved)


def test_a_probe_says_at_the_stop_that_no_weights_arrive(tmp_path, sampled_by):
    sampled_by(Never)
    result = run(tmp_path, "mismatch.probe=on_stop", "mismatch.stop_above=1e-5")
    assert result.exit_code == 1 and "mismatch.stop_above" in result.output
    steps = [path.stem for path in sorted(tmp_path.glob("exp_*/probe/*.npz"))]
    assert steps == ["step_000001", "step_000002"]
    assert "do not reach" in " ".join(result.output.split())


def test_a_probe_at_the_stop_needs_a_limit():
    """In both engines' judges: they have one schema for it."""
    with pytest.raises(ConfigError, match=r"mismatch\.stop_above"):
        validate(MismatchConfig, {"probe": "on_stop"}, "mismatch")
    assert validate(MismatchConfig, {"probe": "on_stop", "stop_above": 0.1}, "mismatch").probe
