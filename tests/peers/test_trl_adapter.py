"""nemo_algos.adapters.trl, in TRL's GRPOTrainer really trained on a CPU.

TRL's own GRPO step by step; what the cut of a batch must not change; learning; what is refused.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
import torch
import trl_runs
from rich.console import Console
from trl_runs import settings, trainer, trajectory

from nemo_algos import config, core
from nemo_algos.local import tiny_policy
from nemo_algos.local.build import policy_of
from nemo_algos.local.preflight import parse

COMBINED = {"advantages": {"name": "erpo"}, "bounds": {"name": "etr"}}
LEARNERS = ["etr", "quatro", "erpo", "apmpo", COMBINED, {"name": "gspo", "bounds": "etr"}]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    trl_runs.disable_progress_bar()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A countdown model that solves some of the puzzles of two numbers, in Hugging Face's format."""
    folder, patch = tmp_path_factory.mktemp("countdown"), pytest.MonkeyPatch()
    patch.setenv("NEMO_ALGOS_CACHE", str(folder / "cache"))
    patch.setattr(tiny_policy, "WARM_STEPS", 100)
    checked, _ = parse(config.load(config.SHIPPED / "grpo.yaml", ["data.numbers=2"]))
    policy_of(checked.policy, trl_runs.RULES, Console(quiet=True)).save(str(folder))
    patch.undo()
    return folder


PAIRS = {  # TRL's settings, our blocks
    "grpo, with a KL penalty": (
        {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False},
        {"method": {"name": "grpo"}, "loss_fn": {"reference_policy_kl_penalty": 0.04}},
    ),
    "dapo, accumulated": (
        {"loss_type": "dapo", "epsilon_high": 0.28, "delta": 1.5},
        {"method": {"name": "grpo", "aggregation": "token", "clip_high": 0.28, "dual_clip": 1.5}},
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_our_grpo_is_trls(pair, model, monkeypatch):
    """40 steps, two to a batch; with TRL's epsilon beside the standard deviation."""
    monkeypatch.setattr(core.groups, "EPS", 1e-4)
    theirs, ours = PAIRS[pair]
    halved = {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 2}
    plain = {"max_steps": 40, "num_iterations": 2} | (halved if "accumulated" in pair else {})
    logs = []
    for changed, own in ((theirs, {}), ({}, ours)):
        run = trainer(model, settings(model, **plain, **changed), **own)
        run.train()
        logs.append(run.state.log_history[:-1])
    rewards = [[row["reward"] for row in log if "reward" in row] for log in logs]
    assert rewards[0] == rewards[1] and len(set(rewards[0])) > 10
    losses = [torch.tensor([row["loss"] for row in log]) for log in logs]
    assert len(losses[0]) == 40 and losses[0].abs().max() > 1e-2
    torch.testing.assert_close(*losses, rtol=0, atol=1e-6)
    assert max(row["clip/fraction"] for row in logs[1]) > 0


@pytest.mark.parametrize("method", LEARNERS, ids=str)
def test_it_learns(method, model):
    lr = 3e-4 if method == "quatro" else 2e-3
    args = settings(model, max_steps=40, num_iterations=2, learning_rate=lr)
    run = trainer(model, args, method)
    run.train()
    rewards = [row["reward"] for row in run.state.log_history if "reward" in row]
    print("LEARN", method, fmean(rewards[:5]), fmean(rewards[-5:]))
