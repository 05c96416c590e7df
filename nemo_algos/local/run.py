"""A run of the embedded engine from a checked config to its summary."""

from __future__ import annotations

import json
import platform
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from nemo_algos.local import checkpoint
from nemo_algos.local.evaluation import evaluate
from nemo_algos.local.logs import Log, plot, read
from nemo_algos.local.schema import LocalConfig
from nemo_algos.local.tasks import Countdown
from nemo_algos.local.tiny_policy import TinyPolicy, warm_started
from nemo_algos.local.trainer import Trainer
from nemo_algos.methods.algorithm import Algorithm

EVALUATION_SEED = 1234
LIBRARIES = ("torch", "transformers", "numpy", "nemo-algos")


class Stop:
    """Set by SIGTERM or SIGINT: finish the step, save, leave."""

    requested = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


def run(config: LocalConfig, algorithm: Algorithm, folder: Path, console: Console) -> None:
    """Train in `folder`, continuing what is there; write checkpoints, logs, summary.json and curves.png."""
    torch.set_num_threads(config.policy.threads)
    write_manifest(folder, config)
    with stopping() as stop:
        trainer = build_trainer(config, algorithm, console)
        before = resume_or_start(trainer, config, folder, console)
        start, first = time.perf_counter(), trainer.step_number
        train(trainer, config, folder, console, stop, before)
        if trainer.step_number < config.grpo.max_num_steps:
            console.print(
                f"stopped at step {trainer.step_number}, saved; to go on:\n  {resume_command(folder)}"
            )
            return
    seconds = time.perf_counter() - start
    finish(trainer, config, folder, console, before, seconds, trainer.step_number - first)


@contextmanager
def stopping() -> Iterator[Stop]:
    """Within, SIGTERM and SIGINT ask for a stop instead of killing."""
    stop = Stop()
    old = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def build_trainer(config: LocalConfig, algorithm: Algorithm, console: Console) -> Trainer:
    """The policy after its warm start, and a frozen copy of it where a reference is needed."""
    torch.manual_seed(config.grpo.seed)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("warm start (once, then cached)", total=1.0)
        model = warm_started(
            config.data.numbers, 0, lambda share: progress.update(bar, completed=share)
        )
        needs_reference = (
            "ref_logprobs" in algorithm.needs or config.loss_fn.reference_policy_kl_penalty > 0
        )
        reference = (
            warm_started(config.data.numbers, 0, lambda share: None) if needs_reference else None
        )
    sampling = config.policy.generation
    policy = TinyPolicy(model, sampling.max_new_tokens, sampling.temperature)
    frozen = reference and TinyPolicy(reference, sampling.max_new_tokens, sampling.temperature)
    return Trainer(config, algorithm, policy, Countdown(config.data.numbers), frozen)


def resume_or_start(
    trainer: Trainer, config: LocalConfig, folder: Path, console: Console
) -> dict[str, float]:
    """Load the newest checkpoint, or evaluate before the first step; returns the evaluation before training."""
    path = checkpoint.latest(folder / "checkpoints")
    if path:
        state = checkpoint.load(path)
        trainer.load(state)
        console.print(f"resumed at step {trainer.step_number} from {path}")
        return state["before"]
    before = evaluation(trainer, config)
    torch.manual_seed(config.grpo.seed)
    return before


def evaluation(trainer: Trainer, config: LocalConfig) -> dict[str, float]:
    """Held-out pass@k and distinct solutions of the current policy."""
    if config.grpo.val_samples_per_prompt == 0:
        return {}
    return evaluate(
        trainer.policy,
        trainer.task,
        config.grpo.max_val_samples,
        config.grpo.val_samples_per_prompt,
        EVALUATION_SEED,
    )


def train(
    trainer: Trainer,
    config: LocalConfig,
    folder: Path,
    console: Console,
    stop: Stop,
    before: dict[str, float],
) -> None:
    """Steps until the end or a stop, saving as configured and at the end."""
    with Log(folder, console, config.logger.tensorboard_enabled, config.grpo.max_num_steps) as log:
        log.rewind(trainer.step_number)
        while trainer.step_number < config.grpo.max_num_steps and not stop.requested:
            metrics = trainer.step()
            log.write(trainer.step_number, metrics)
            at_end = trainer.step_number == config.grpo.max_num_steps
            due = trainer.step_number % config.checkpointing.save_period == 0
            if config.checkpointing.enabled and (due or at_end or stop.requested):
                state = {**trainer.state(), "before": before}
                checkpoint.save(folder / "checkpoints", state, config.checkpointing.keep_last)


def finish(
    trainer: Trainer,
    config: LocalConfig,
    folder: Path,
    console: Console,
    before: dict[str, float],
    seconds: float,
    steps: int,
) -> None:
    """Evaluate, save the model and the curves, write summary.json and say where things are."""
    after = evaluation(trainer, config)
    trainer.policy.save(str(folder / "model"))
    name = trainer.algorithm.name
    curves = plot(folder, f"{name}, seed {config.grpo.seed}")
    tokens = [r["tokens_per_second"] for r in read(folder)[-steps:]] if steps else [0.0]
    summary = {
        "method": name,
        "steps": trainer.step_number,
        "before": before,
        "after": after,
        "seconds": seconds,
        "tokens_per_second": statistics.median(tokens),
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2))
    table = Table("held out", *before, title=f"{name}: {steps} steps in {seconds:.1f} s")
    for label, values in (("before", before), ("after", after)):
        table.add_row(label, *(f"{v:.3f}" for v in values.values()))
    console.print(table)
    console.print(
        f"run folder   {folder}\n"
        f"curves       {curves}\n"
        f"model        {folder / 'model'}  (Hugging Face format)\n"
        f"TensorBoard  uvx tensorboard --logdir {folder}",
        soft_wrap=True,
        highlight=False,
    )


def write_manifest(folder: Path, config: LocalConfig) -> None:
    """manifest.json: config, versions, git state. Raises ValueError where the folder holds a run of another config."""
    path, plain = folder / "manifest.json", config.model_dump(mode="json")
    if path.exists():
        different = _difference(json.loads(path.read_text())["config"], plain)
        if different:
            raise ValueError(
                f"{folder} holds a run of another config; resume with its own, or use another folder:\n  "
                + "\n  ".join(different)
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "config": plain,
        "seed": config.grpo.seed,
        "versions": {"python": platform.python_version(), **{x: version(x) for x in LIBRARIES}},
        "git": _git_state(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(manifest, indent=2))
    partial.replace(path)


def _difference(old: Any, new: Any, path: str = "") -> list[str]:
    """`key: old -> new` for every leaf that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = list(dict.fromkeys([*old, *new]))
        return [
            d for k in keys for d in _difference(old.get(k), new.get(k), f"{path}.{k}".strip("."))
        ]
    return [] if old == new else [f"{path}: {old} -> {new}"]


def _git_state() -> str:
    """Commit and whether the tree is dirty; empty outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def resume_command(folder: Path) -> str:
    """What to type to go on."""
    return f"uv run examples/run_grpo_math.py --resume {folder}"
