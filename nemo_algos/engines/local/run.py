"""A run of the embedded engine from a checked config to its summary."""

import signal
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from rich.console import Console

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.config import ConfigError, first_line
from nemo_algos.engines.local import checkpoint, manifest, summary
from nemo_algos.engines.local.build import build_trainer
from nemo_algos.engines.local.evaluation import SEED, measure, sample
from nemo_algos.engines.local.hardware import describe, threads_of
from nemo_algos.engines.local.logs import RECORD, Log, Told, open_folder
from nemo_algos.engines.local.schema import LocalConfig, TorchClass
from nemo_algos.engines.local.screen import Screen, say
from nemo_algos.engines.local.summary import HELD_OUT, Record
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.engines.local.updates import rehearse
from nemo_algos.terminal import echo


class Stopped(BaseException):  # no Exception, which a reward function's failure would be
    """A signal ended the run where it can be resumed."""


class Stop:
    """Within, SIGTERM and SIGINT ask for a stop instead of killing.

    While `stepping`, the step is finished and saved first; else they stop at once.
    """

    requested = 0  # the signal's number
    stepping = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.requested = number
        if not self.stepping:
            raise Stopped

    def __enter__(self) -> Self:
        self.old = {s: signal.signal(s, self) for s in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler)


def run(config: LocalConfig, algorithm: Algorithm, folder: Path | None, console: Console) -> None:
    """Train in `folder`, continuing what is there, else in a new one below logger.log_dir.

    Raises ConfigError where the optimizer or its schedule cannot be made; ValueError where the
    folder holds a run of another config, is another process's, or is broken; SystemExit, 130 or
    143, where a signal stopped it.
    """
    torch.set_num_threads(threads_of(config.policy))
    if wrong := rehearse(config.policy.optimizer, config.policy.scheduler):
        raise ConfigError(wrong)
    with Stop() as stop, open_folder(folder, Path(config.logger.log_dir)) as place:
        try:
            begun = _begun(place, config, console)
            if said := summary.finished_message(place, config) if begun else "":
                return say(console, said)
            say(console, f"loading {config.policy.model_name}")
            trainer = build_trainer(config, algorithm, console)
            with closing(trainer.task):
                TrainingRun(trainer, place, console, stop).go()
        except Stopped:
            again = "" if config.checkpointing.enabled else " from step 0 (checkpointing is off)"
            resume = f"To resume{again}:\n  nemo-algos train --resume {place}"
            rest = resume if (place / RECORD).exists() else "No step was done, so nothing is saved."
            echo(f"Stopped. {rest}", err=True)
            raise SystemExit(128 + stop.requested) from None


def _begun(folder: Path, config: LocalConfig, console: Console) -> bool:
    """Whether there is a run to go on with, its changes said; else a new manifest is written."""
    there = checkpoint.steps(folder / "checkpoints")
    if not (there or (folder / RECORD).exists()) or not (folder / "manifest.json").exists():
        manifest.write(folder, config)
        return False
    step = max(there, default=0)
    for change in manifest.record_changes(folder, config, step):
        say(console, f"from step {step} on: {change}")
        if change.key == "grpo.max_num_steps" and _lasts(config, steps := change.old):
            kept = f"`policy.scheduler` still ends at step {steps}"
            say(console, f"{kept}. Set it explicitly to extend it.")
    return True


def _lasts(config: LocalConfig, steps: int) -> bool:
    """Whether the schedule has a number of so many steps."""
    named = [e.kwargs for e in config.policy.scheduler if isinstance(e, TorchClass)]
    return any(steps in kwargs.values() for kwargs in named)


class TrainingRun:
    """A trainer in its folder: train, evaluate when it is time to, sum up."""

    def __init__(self, trainer: Trainer, folder: Path, console: Console, stop: Stop) -> None:
        self.trainer = trainer
        self.folder = folder
        self.console = console
        self.stop = stop
        trainer.observer.watch.folder = folder
        self.config = trainer.config
        self.checkpoints = folder / "checkpoints"
        self.last = self.config.grpo.max_num_steps

    def go(self) -> None:
        """From the newest checkpoint, else from the start, to the end. Raises Stopped."""
        if path := checkpoint.latest(self.checkpoints):
            self._resume(path)
        done = self.trainer.step_number
        dump = manifest.to_json(self.config)
        told = Told(self.folder, dump, manifest.id_of(self.folder), done)
        self.screen = Screen(self.console, done, self.last)
        self.log = Log(self.config.logger, told, partial(say, self.console))
        self.record = Record(self.folder, self.config)
        say(self.console, f"{self.folder}: {self._facts()}")
        with self.log, self.screen:
            self._train()
        summary.write(self.trainer, self.record, self.console)

    def _facts(self) -> str:
        policy = self.config.policy
        data = self.trainer.task
        size = sum(p.numel() for p in self.trainer.policy.model.parameters())
        held_out = f"{len(data.held_out(self.config.grpo.max_val_samples))} held out"
        model = f"{policy.model_name}, {size:,} parameters, on {describe(policy)}"
        return f"{model}; {data.counts()}, {held_out}"

    def _resume(self, path: Path) -> None:
        state = checkpoint.load(path)
        try:
            if state["step"] not in checkpoint.steps(path.parent):
                raise ValueError(f"its step is {state['step']}")
            self.trainer.load(state)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            what = f"{path} is not a checkpoint of this run ({reason})"
            raise ValueError(f"{what}. Delete it.") from None
        say(self.console, f"resumed at step {self.trainer.step_number} from {path}")

    def _train(self) -> None:
        trainer = self.trainer
        record = self.record
        grpo = self.config.grpo
        while True:
            if self._due():
                self._evaluate()
            step = trainer.step_number
            if step >= self.last or summary.threshold_message(grpo, record.held_out(step)):
                return
            self.stop.stepping = True
            metrics = trainer.step()
            record.refuse_unknown(metrics)
            self._write(metrics, trainer.traces)
            for sentence in trainer.said:
                say(self.console, f"warning: {sentence}")
            self._save_if_due()
            self.stop.stepping = False
            if self.stop.requested:
                raise Stopped

    def _due(self) -> bool:
        """Whether to evaluate now; not where it has been done before a kill."""
        step = self.trainer.step_number
        grpo = self.config.grpo
        if self.record.held_out(step):
            return False
        if step in (0, self.last):
            return grpo.val_at_end if step else grpo.val_at_start
        return bool(grpo.val_period) and step % grpo.val_period == 0

    def _evaluate(self) -> None:
        grpo = self.config.grpo
        step = self.trainer.step_number
        found = sample(
            self.trainer.policy,
            self.trainer.task,
            grpo.max_val_samples,
            samples=grpo.val_samples_per_prompt,
            seed=SEED,
            track=partial(self.screen.track, doing=f"evaluating at step {step}"),
        )
        if values := measure(found):
            self._write({f"{HELD_OUT}{name}": value for name, value in values.items()})
            self.screen.responses(found.first, self.config.logger.num_val_samples_to_print)
            shown = "  ".join(f"{name} {value:.3f}" for name, value in values.items())
            say(self.console, f"step {step}/{self.last}  held out: {shown}")

    def _write(self, metrics: dict[str, float], traces: Sequence[Any] = ()) -> None:
        row = self.log.write(self.trainer.step_number, metrics, traces)
        self.record.add(row)
        self.screen.step(row)

    def _save_if_due(self) -> None:
        """Also before an evaluation, which a signal may end."""
        number = self.trainer.step_number
        settings = self.config.checkpointing
        due = number == self.last or number % settings.save_period == 0 or self._due()
        if settings.enabled and (due or self.stop.requested):
            state = self.trainer.state()
            values = self.record.values()
            checkpoint.save(self.checkpoints, state, settings.keep_top_k, values)
