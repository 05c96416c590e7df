"""Runs that end too early (killed, stopped, out of disk), and what a resumed one has to equal."""

import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import sys

import pytest
import torch
from short_runs import SMALL, assert_same_run, short_warm_start, train  # noqa: F401
from typer.testing import CliRunner

from nemo_algos.cli import app
from nemo_algos.engines.local import checkpoint


def counted(work, event):
    """Profile `work` until it ends: event(n) at its n-th call or return."""
    numbers = itertools.count(1)
    sys.setprofile(lambda *_: event(next(numbers)))
    try:
        work()
    finally:
        sys.setprofile(None)
    return next(numbers)


def killed(folder, moment):
    """The exit status of a forked run that SIGKILL ends at its call or return of that number."""

    def kill(number):
        if number == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def work():
        counted(lambda: train(folder), kill)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.long)])
def test_kills_at_random_moments_equal_the_uninterrupted_run(tmp_path, whole, kills):
    length = counted(lambda: train(tmp_path / "again"), lambda _: None)
    rng, folder = random.Random(0), tmp_path / "killed"
    codes = [killed(folder, rng.randrange(int(0.6 * length))) for _ in range(kills)]
    assert set(codes) <= {0, -signal.SIGKILL} and codes.count(-signal.SIGKILL) >= kills / 2
    train(folder)
    assert_same_run(folder, whole)
    assert json.loads((folder / "summary.json").read_text())["steps"] == 12


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_step_and_names_the_resume_command(tmp_path, monkeypatch, whole, number):
    from nemo_algos.engines.local.trainer import Trainer

    step = Trainer.step

    def signalled(self):
        if self.step_number == 4:
            os.kill(os.getpid(), number)
        return step(self)

    given = ["etr.yaml", *SMALL, f"logger.log_dir={tmp_path}", "--resume", f"{tmp_path}/stopped"]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", signalled)
        done = CliRunner().invoke(app, ["train", *given])
    assert done.exit_code == 128 + number  # as a shell says it: 143 or 130
    command = f"  nemo-algos train --resume {tmp_path / 'stopped'}"
    assert done.stderr.splitlines()[1:] == [command]
    latest = checkpoint.latest(tmp_path / "stopped" / "checkpoints")
    assert latest is not None and latest.name == "step_000005.pt"
    train(tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", whole)


def test_a_signal_before_the_first_step_leaves_at_once(tmp_path, monkeypatch):
    from nemo_algos.engines.local import run as module

    monkeypatch.setattr(module, "build_trainer", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit, match="143"):
        train(tmp_path / "early")
    assert not (tmp_path / "early").exists()


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path):
    folder = tmp_path / "checkpoints"
    state = {"step": 1, "model": torch.arange(100_000)}
    good = checkpoint.save(folder, state, keep_top_k=2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"step_000001"):
            checkpoint.save(folder, {**state, "step": 2}, keep_top_k=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert checkpoint.latest(folder) == good and list(folder.iterdir()) == [good]
    assert torch.equal(checkpoint.load(good)["model"], state["model"])


def test_resuming_with_another_config_is_refused_with_the_difference(whole):
    with pytest.raises(ValueError, match=r"grpo\.seed: 42 -> 7"):
        train(whole, "grpo.seed=7")
    done = CliRunner().invoke(app, ["train", "--resume", str(whole), "grpo.seed=7"])
    assert done.exit_code == 2 and "grpo.seed: 42 -> 7" in done.stderr


def test_old_checkpoints_go(tmp_path):
    train(tmp_path / "run", "checkpointing.keep_top_k=3")
    names = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step_000008.pt", "step_000010.pt", "step_000012.pt"]


OPTIMIZERS = [
    c for c in vars(torch.optim).values() if isinstance(c, type) and c.__module__ != "builtins"
]


def test_the_state_of_every_optimizer_is_loaded_as_data(tmp_path):
    """Numbers and tensors: nothing that torch's strict loader refuses."""
    kept = []
    for kind in OPTIMIZERS:
        if kind in (torch.optim.Optimizer, torch.optim.SparseAdam, torch.optim.LBFGS):
            continue
        parameters = [torch.nn.Parameter(torch.ones(2, 2))]
        optimizer = kind(parameters, lr=0.1)
        parameters[0].sum().backward()
        optimizer.step()
        path = checkpoint.save(tmp_path, {"step": 1, "optimizer": optimizer.state_dict()}, 2)
        optimizer.load_state_dict(checkpoint.load(path)["optimizer"])
        kept.append(kind.__name__)
    assert {"AdamW", "SGD", "Adafactor"} <= set(kept)


def test_the_state_of_every_scheduler_is_loaded_as_data(tmp_path):
    from torch.optim import lr_scheduler as of

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    made = [
        of.LinearLR(optimizer),
        of.ConstantLR(optimizer),
        of.ExponentialLR(optimizer, 0.9),
        of.MultiStepLR(optimizer, [2, 3]),
        of.StepLR(optimizer, 2),
        of.PolynomialLR(optimizer),
        of.CosineAnnealingLR(optimizer, 5),
        of.CosineAnnealingWarmRestarts(optimizer, 5),
        of.OneCycleLR(optimizer, 0.2, 10, cycle_momentum=False),
        of.CyclicLR(optimizer, 0.1, 0.2, cycle_momentum=False),
        of.SequentialLR(optimizer, [of.LinearLR(optimizer), of.StepLR(optimizer, 2)], [3]),
    ]
    for scheduler in made:
        optimizer.step()
        scheduler.step()
        path = checkpoint.save(tmp_path, {"step": 1, "scheduler": scheduler.state_dict()}, 2)
        scheduler.load_state_dict(checkpoint.load(path)["scheduler"])


def test_a_state_that_holds_objects_is_refused_as_it_is_saved(tmp_path):
    """Not after days, when the run is to be resumed."""
    good = checkpoint.save(tmp_path, {"step": 1}, keep_top_k=2)
    said = pytest.raises(ValueError, match=r"random\.Random")
    with said:
        checkpoint.save(tmp_path, {"step": 2, "optimizer": random.Random(0)}, keep_top_k=2)
    assert list(tmp_path.iterdir()) == [good]


@pytest.mark.parametrize("place", [0.3, 0.5, 0.7])
def test_a_checkpoint_with_other_bytes_than_were_saved_is_refused(tmp_path, place):
    """Of a disk that lost them: torch itself compares no checksum of its numbers."""
    numbers = {"weight": torch.arange(1.0, 1001.0), "moment": torch.arange(1.0, 1001.0)}
    path = checkpoint.save(tmp_path, {"step": 1, "model": numbers}, keep_top_k=2)
    assert checkpoint.load(path)["step"] == 1
    content = bytearray(path.read_bytes())
    start = int(place * len(content))
    content[start : start + 64] = bytes(64)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"step_000001\.pt "):
        checkpoint.load(path)


def test_the_newest_checkpoint_is_that_of_the_largest_step(tmp_path):
    for step in (999_999, 1_000_000):
        path = checkpoint.save(tmp_path, {"step": step}, keep_top_k=1)
    (tmp_path / "step_zzzzzz.pt").write_text("")
    assert checkpoint.latest(tmp_path) == path and checkpoint.steps(tmp_path) == {1_000_000: path}


@pytest.mark.parametrize("size", [0, 100])
def test_an_empty_or_cut_checkpoint_says_what_to_do(tmp_path, size):
    whole = tmp_path / "step_000001.pt"
    torch.save({"step": 1, "model": torch.zeros(1000)}, whole)
    whole.write_bytes(whole.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"Delete .* to resume from the previous checkpoint"):
        checkpoint.load(whole)
