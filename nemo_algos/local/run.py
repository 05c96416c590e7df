"""A run of the embedded engine from a checked config to its summary."""

import json
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType

import torch
from rich.console import Console
from rich.table import Table

from nemo_algos.local import checkpoint, manifest
from nemo_algos.local.build import build_trainer
from nemo_algos.local.evaluation import SEED, evaluate
from nemo_algos.local.hardware import threads_of
from nemo_algos.local.logs import Log, plot, read
from nemo_algos.local.schema import LocalConfig
from nemo_algos.local.trainer import Trainer
from nemo_algos.methods.algorithm import Algorithm


class Stopped(BaseException):  # no Exception, which a reward function's failure would be
    """A signal ended the run where it can be resumed."""


class Stop:
    """SIGTERM and SIGINT: while `stepping`, the step is finished and saved first; else at once."""

    requested = 0  # the signal's number
    stepping = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.requested = number
        if not self.stepping:
            raise Stopped


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


def run(config: LocalConfig, algorithm: Algorithm, folder: Path, console: Console) -> None:
    """Train in `folder`, continuing what is there; write checkpoints, logs, summary.json, curves.

    A folder that was not there is there from the first finished step on. Raises ValueError where
    the folder holds a run of another config, or is broken; SystemExit, 130 or 143, where a signal
    stopped it.
    """
    torch.set_num_threads(threads_of(config.policy))
    manifest.refuse_another(folder, config)
    with stopping() as stop:
        try:
            trainer = build_trainer(config, algorithm, console)
            with closing(trainer.task), removed_without_a_step(folder):
                manifest.write(folder, config)
                Run(trainer, folder, console, stop).go()
        except Stopped:
            again = "" if config.checkpointing.enabled else " from the start (checkpointing is off)"
            resume = f"to go on{again}:\n  uv run nemo-algos train --resume {folder}"
            rest = resume if folder.exists() else "before the first step: nothing is kept"
            print(f"stopped; {rest}", file=sys.stderr)
            raise SystemExit(128 + stop.requested) from None


@contextmanager
def removed_without_a_step(folder: Path) -> Iterator[None]:
    """An error before the first finished step removes a folder that was not there before."""
    fresh = not folder.exists()
    try:
        yield
    except BaseException:
        if fresh and not (folder / "metrics.jsonl").exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise


class Run:
    """A trainer in its folder: evaluate, train, evaluate, report."""

    def __init__(self, trainer: Trainer, folder: Path, console: Console, stop: Stop) -> None:
        self.trainer, self.folder, self.console, self.stop = trainer, folder, console, stop
        self.config = trainer.config
        self.before: dict[str, float] = {}
        self.seconds = 0.0  # of training, over all resumes

    def go(self) -> None:
        """From the newest checkpoint, else from the start, to the end. Raises Stopped."""
        path = checkpoint.latest(self.folder / "checkpoints")
        if path:
            self._resume(path)
        else:
            self.before = self._evaluation()
        self._train()
        self._finish()

    def _resume(self, path: Path) -> None:
        state = checkpoint.load(path)
        try:
            if state["step"] not in checkpoint.steps(path.parent):
                raise ValueError(f"its step is {state['step']}")
            self.trainer.load(state)
            self.before = {str(name): float(x) for name, x in state["before"].items()}
            self.seconds = float(state["seconds"])
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {checkpoint.first_line(error)}"
            raise ValueError(f"{path} is no checkpoint of this run ({reason}): remove it") from None
        step = self.trainer.step_number
        self.console.print(f"resumed at step {step} from {path}", soft_wrap=True)

    def _evaluation(self) -> dict[str, float]:
        grpo, asked = self.config.grpo, (self.trainer.policy, self.trainer.task)
        return evaluate(*asked, grpo.max_val_samples, grpo.val_samples_per_prompt, SEED)

    def _train(self) -> None:
        trainer, last = self.trainer, self.config.grpo.max_num_steps
        tensorboard = self.config.logger.tensorboard_enabled
        with Log(self.folder, self.console, tensorboard, trainer.step_number, last) as log:
            self.stop.stepping = True
            while trainer.step_number < last and not self.stop.requested:
                start = time.perf_counter()
                log.write(trainer.step_number + 1, trainer.step(), trainer.traces)
                for sentence in trainer.said:
                    self.console.print(f"warning: {sentence}", style="yellow", soft_wrap=True)
                self.seconds += time.perf_counter() - start
                self._save_if_due()
            self.stop.stepping = False
        if trainer.step_number < last:
            raise Stopped

    def _save_if_due(self) -> None:
        number, settings = self.trainer.step_number, self.config.checkpointing
        at_end = number == self.config.grpo.max_num_steps or self.stop.requested
        if settings.enabled and (at_end or number % settings.save_period == 0):
            state = {**self.trainer.state(), "before": self.before, "seconds": self.seconds}
            checkpoint.save(self.folder / "checkpoints", state, settings.keep_last)

    def _finish(self) -> None:
        """Save the model and the curves, evaluate, write summary.json and say where things are."""
        after = self._evaluation()
        self.trainer.policy.save(str(self.folder / "model"))
        if self.config.data.task == "math":
            self.config.data.trained.write(self.folder / "model")
        name = self.trainer.algorithm.name
        curves = plot(self.folder, f"{name}, seed {self.config.grpo.seed}")
        rows = read(self.folder)
        speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
        summary = {
            "method": name,
            "steps": self.trainer.step_number,
            "before": self.before,
            "after": after,
            "seconds": self.seconds,
            "tokens_per_second": statistics.median(speeds or [0.0]),
        }
        (self.folder / "summary.json").write_text(json.dumps(summary, indent=2))
        title = f"{name}: {len(rows)} steps in {self.seconds:.1f} s"
        self._say(title, {"before": self.before, "after": after}, curves)

    def _say(self, title: str, evaluations: dict[str, dict[str, float]], curves: Path) -> None:
        table = Table("held out", *evaluations["after"], title=title)
        for label, values in evaluations.items():
            table.add_row(label, *(f"{v:.3f}" for v in values.values()))
        self.console.print(table if evaluations["after"] else title)
        self.console.print(
            f"run folder   {self.folder}\n"
            f"curves       {curves}\n"
            f"model        {self.folder / 'model'}  (Hugging Face format)\n"
            f"TensorBoard  uvx tensorboard --logdir {self.folder}",
            soft_wrap=True,
            highlight=False,
        )
