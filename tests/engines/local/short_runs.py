"""Runs of the shipped configs that take a second: what they say, log and save."""

import io
import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from rich.console import Console

from nemo_algos import config
from nemo_algos.engines.local import checkpoint, tiny_policy
from nemo_algos.engines.local.run import run
from nemo_algos.preflight.check.local.judge import parse

CONFIGS = Path(__file__).parents[3] / "examples" / "configs"


SMALL = [
    "grpo.num_prompts_per_step=4",
    "grpo.num_generations_per_prompt=4",
    "grpo.max_num_steps=12",
    "grpo.max_val_samples=2",
    "grpo.val_samples_per_prompt=4",
    "policy.train_global_batch_size=8",
    "checkpointing.save_period=2",
    "logger.tensorboard_enabled=false",
]


@contextmanager
def quick(tmp_path_factory):
    """Little is taught, and nothing drawn at the end, which takes longer than such a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_policy, "WARM_STEPS", 2)
        patch.setenv("NEMO_ALGOS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        patch.setattr("nemo_algos.engines.local.run.plot", lambda folder, _: folder / "curves.png")
        yield


@pytest.fixture(scope="module", autouse=True)
def short_warm_start(tmp_path_factory):
    """All runs of the file are quick."""
    with quick(tmp_path_factory):
        yield


def train(folder, *overrides, name="etr.yaml"):
    plain = config.load(CONFIGS / name, [*SMALL, f"logger.log_dir={folder.parent}", *overrides])
    out = io.StringIO()
    run(*parse(plain), folder, Console(file=out, width=200))
    return out.getvalue()


def metrics(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if "time" not in k and "second" not in k} for r in rows]


def weights(folder):
    path = checkpoint.latest(folder / "checkpoints")
    assert path is not None
    return checkpoint.load(path)["model"]


def assert_same_run(folder, other):
    assert metrics(folder) == metrics(other)
    others = weights(other)
    for name, value in weights(folder).items():
        assert torch.equal(value, others[name]), name
