"""A run of the embedded engine from a checked config to its summary and the last words."""

import json
import math
import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, Self

import torch
from pydantic import Field
from rich.console import Console
from rich.table import Column, Table

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.engines.local import checkpoint, manifest
from nemo_algos.engines.local.build import build_trainer
from nemo_algos.engines.local.evaluation import SEED, measure, sample
from nemo_algos.engines.local.hardware import describe, threads_of
from nemo_algos.engines.local.logs import METRICS, Log, TrackedRun, open_folder, plot, read
from nemo_algos.engines.local.lora import load_trained
from nemo_algos.engines.local.schema import GRPOSection, LocalConfig, TorchClass
from nemo_algos.engines.local.screen import Screen, say
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.engines.local.updates import rehearse
from nemo_algos.findings import ConfigError, did_you_mean, first_line
from nemo_algos.jsonl import JsonObject, read_object
from nemo_algos.terminal import echo

HELD_OUT = "validation/"
LENGTHS = ("T_max", "total_iters", "total_steps")  # arguments of torch's schedulers: their steps


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
    wrong = rehearse(config.policy.optimizer, config.policy.scheduler)
    if wrong:
        raise ConfigError(wrong)
    with Stop() as stop, open_folder(folder, Path(config.logger.log_dir)) as place:
        try:
            begun = _begun(place, config, algorithm.name, console)
            said = finished_message(place, config) if begun else ""
            if said:
                return say(console, said)
            say(console, f"loading {config.policy.model_name}")
            trainer = build_trainer(config, algorithm, console)
            with closing(trainer.task):
                TrainingRun(trainer, place, console, stop).go()
        except Stopped:
            again = "" if config.checkpointing.enabled else " from step 0 (checkpointing is off)"
            resume = f"To resume{again}:\n  nemo-algos train --resume {place}"
            rest = (
                resume if (place / METRICS).exists() else "No step was done, so nothing is saved."
            )
            echo(f"Stopped. {rest}", err=True)
            raise SystemExit(128 + stop.requested) from None


def _begun(folder: Path, config: LocalConfig, method: str, console: Console) -> bool:
    """Whether there is a run to go on with, its changes said; else a new manifest is written.

    A run to go on with has a manifest, and a checkpoint or a step. One that was killed before its
    first step begins anew, and so does one without a manifest, whose config nobody knows.
    """
    there = checkpoint.steps(folder / "checkpoints")
    trained = there or (folder / METRICS).exists()
    known = (folder / "manifest.json").exists()
    if not trained or not known:
        manifest.write(folder, config, method)
        return False
    step = max(there, default=0)
    for change in manifest.record_changes(folder, config, step):
        say(console, f"from step {step} on: {change}")
        last = change.old
        if change.key == "grpo.max_num_steps" and _has_length(config, last):
            say(
                console,
                f"`policy.scheduler` still ends at step {last}. Set it explicitly to extend it.",
            )
    return True


def _has_length(config: LocalConfig, steps: int) -> bool:
    """Whether one of the schedulers is made for so many steps."""
    for entry in config.policy.scheduler:
        lengths = entry.kwargs if isinstance(entry, TorchClass) else {}
        if steps in [lengths.get(name) for name in LENGTHS]:
            return True
    return False


class TrainingRun:
    """A trainer in its folder: train, evaluate when it is time to, sum up."""

    def __init__(self, trainer: Trainer, folder: Path, console: Console, stop: Stop) -> None:
        self.trainer = trainer
        self.folder = folder
        self.console = console
        self.stop = stop
        trainer.observer.watch.folder = folder  # a trainer is made without one, and dumps nothing
        self.config = trainer.config
        self.checkpoints = folder / "checkpoints"
        self.last = self.config.grpo.max_num_steps

    def go(self) -> None:
        """From the newest checkpoint, else from the start, to the end. Raises Stopped."""
        path = checkpoint.latest(self.checkpoints)
        if path:
            self._resume(path)
        done = self.trainer.step_number
        dump = manifest.to_json(self.config)
        tracked = TrackedRun(self.folder, dump, manifest.id_of(self.folder), done)
        self.screen = Screen(self.console, done, self.last)
        self.log = Log(self.config.logger, tracked, partial(say, self.console))
        self.record = Record(self.folder, self.config)
        # remarks compare a step with those before, of which a resumed run has some already
        for step, row in self.record.rows.items():
            self.trainer.remarks.of(step, row)
        say(self.console, f"{self.folder}: {self._facts()}")
        try:
            with self.log, self.screen:
                self._train()
            write(self.trainer, self.record, self.console)
        finally:
            self.trainer.remarks.end(partial(say, self.console))

    def _facts(self) -> str:
        policy = self.config.policy
        data = self.trainer.task
        size = sum(p.numel() for p in self.trainer.policy.model.parameters())
        return (
            f"{policy.model_name}, {size:,} parameters, on {describe(policy)}; {data.counts()}, "
            f"{len(data.held_out(self.config.grpo.max_val_samples))} held out"
        )

    def _resume(self, path: Path) -> None:
        state = checkpoint.load(path)
        try:
            if state["step"] not in checkpoint.steps(path.parent):
                raise ValueError(f"its step is {state['step']}")
            self.trainer.load(state)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ValueError(
                f"{path} is not a checkpoint of this run ({type(error).__name__}: "
                f"{first_line(error)}). Delete it."
            ) from None
        say(self.console, f"resumed at step {self.trainer.step_number} from {path}")

    def _train(self) -> None:
        trainer = self.trainer
        record = self.record
        grpo = self.config.grpo
        while True:
            if self._due():
                self._evaluate()
            step = trainer.step_number
            if step >= self.last or threshold_message(grpo, record.held_out(step)):
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
        values = measure(found)
        if values:
            self._write({f"{HELD_OUT}{name}": value for name, value in values.items()})
            self.trainer.remarks.held_out[step] = values["accuracy"]
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


class Summary(JsonObject):
    """What is read again of summary.json."""

    steps: int
    after: dict[str, float] = Field(default={})


class Record:
    """All metrics of a run, by step, in memory."""

    def __init__(self, folder: Path, config: LocalConfig) -> None:
        self.folder = folder
        self.config = config
        self.rows = defaultdict[int, dict[str, float]](dict)
        for row in read(folder):
            self.add(row)
        # of what checkpoints are compared by
        source, _, name = (config.checkpointing.metric_name or "").partition(":")
        self.metric = f"{HELD_OUT}{name}" if source == "val" else name

    def add(self, row: Mapping[str, float]) -> None:
        self.rows[int(row["step"])] |= row

    def held_out(self, step: int) -> dict[str, float]:
        """The evaluation after this step; empty where there was none."""
        row = self.rows.get(step, {})
        return {k.removeprefix(HELD_OUT): v for k, v in row.items() if k.startswith(HELD_OUT)}

    def values(self) -> dict[int, float]:
        """By step, of the metric that checkpoints are compared by: the higher the better."""
        sign = 1 if self.config.checkpointing.higher_is_better else -1
        found = ((step, row.get(self.metric)) for step, row in self.rows.items())
        return {step: sign * v for step, v in found if v is not None and not math.isnan(v)}

    def refuse_unknown(self, metrics: dict[str, float]) -> None:
        """Raises ValueError where the first step has no metric of the name in metric_name.

        The names of an evaluation's metrics have been checked with the config.
        """
        first = 1 not in self.rows
        of_steps = self.metric and not self.metric.startswith(HELD_OUT)
        if first and of_steps and self.metric not in metrics:
            near = did_you_mean(self.metric, list(metrics))
            raise ValueError(f"checkpointing.metric_name: unknown metric {self.metric}{near}")


def threshold_message(grpo: GRPOSection, values: Mapping[str, float]) -> str:
    """How an evaluation has reached the threshold; empty where it has not, or there is none."""
    name = grpo.stop_at_validation_metric
    threshold = grpo.stop_at_validation_threshold
    if name is None or threshold is None or not values.get(name, -math.inf) >= threshold:
        return ""
    return f", {name} {values[name]:.4g} >= {threshold:g}"


def finished_message(folder: Path, config: LocalConfig) -> str:
    """What is to be said of a run with nothing left to do; else empty."""
    path = folder / "summary.json"
    last = config.grpo.max_num_steps
    if not path.exists():
        return ""
    found = read_object(path, Summary)
    step = found["steps"]
    ended = threshold_message(config.grpo, found.get("after", {}))
    if step < last and not ended:
        return ""
    key = "stop_at_validation_threshold" if step < last else "max_num_steps"
    return f"{folder} is already at step {step} of {last}{ended}. To continue, raise `grpo.{key}`."


def write(trainer: Trainer, record: Record, console: Console) -> None:
    """Save the models, draw the curves, write summary.json, and say where things are.

    Afterwards the trainer has the weights of its best checkpoint.
    """
    folder = record.folder
    step = trainer.step_number
    name = trainer.algorithm.name
    _save(trainer, folder / "model")  # before `_best`, which loads other weights
    curves = plot(folder, f"{_title(record, name)}, seed {record.config.grpo.seed}")
    best = _best(trainer, record)
    metric = record.metric
    trained = [row for row in record.rows.values() if "tokens_per_second" in row]
    seconds = sum(row.get("time/seconds", 0.0) for row in trained)
    found = {
        "method": name,
        "steps": step,
        "before": record.held_out(0),
        "after": record.held_out(step),
        **({"best": {"step": best, metric: record.rows[best][metric]}} if best else {}),
        "seconds": seconds,
        "tokens_per_second": median([row["tokens_per_second"] for row in trained] or [0.0]),
    }
    (folder / "summary.json").write_text(json.dumps(found, indent=2))
    steps = {"before": 0, "after": step} | ({f"best, step {best}": best} if best else {})
    ended = threshold_message(record.config.grpo, record.held_out(step))
    if ended:
        say(console, f"ended early{ended}")
    _say(
        console,
        f"{_title(record, name)}: {step} steps in {seconds:.1f} s",
        {label: record.held_out(s) for label, s in steps.items()},
    )
    lines = [
        f"run folder   {folder}",
        f"curves       {curves}",
        f"model        {folder / 'model'}  (Hugging Face format)",
        *[f"best model   {folder / 'best_model'}  (step {best})"] * bool(best),
        f"TensorBoard  uvx tensorboard --logdir {folder}",
    ]
    say(console, "\n".join(lines))


def _title(record: Record, method: str) -> str:
    """The run's name, which may be its config's, and its method."""
    name = Path(record.config.logger.log_dir).name
    if name in ("", method):
        return method
    return f"{name} ({method})"


def _best(trainer: Trainer, record: Record) -> int:
    """The step of the best checkpoint by the metric, saved as a model; 0 where there is none.

    It is saved from the trainer's model, which loses the weights that it had.
    """
    folder = record.folder / "checkpoints"
    values = record.values()
    best = next((s for s in checkpoint.ranking(folder, values) if s in values), 0)
    if best:
        state = checkpoint.load(checkpoint.steps(folder)[best])
        load_trained(trainer.policy.model, state["model"])
        _save(trainer, record.folder / "best_model")
    return best


def _save(trainer: Trainer, folder: Path) -> None:
    """Save a model and, of problems from a file, the form of its prompts for evaluations.

    Puzzles have one form, and a task of the user's makes its prompts itself.
    """
    trainer.policy.save(str(folder))
    if trainer.config.data.task == "math":
        trainer.config.data.trained.write(folder)


def _say(console: Console, title: str, evaluations: Mapping[str, dict[str, float]]) -> None:
    """A table of the evaluations; accuracy is pass@1 where rewards are 0 and 1."""
    there = {label: values for label, values in evaluations.items() if values}
    names: dict[str, None] = {}  # in order, each once
    for values in there.values():
        names |= dict.fromkeys(values)
    if all(math.isclose(v["accuracy"], v.get("pass@1", math.nan)) for v in there.values()):
        names.pop("accuracy", None)
    table = Table("held out", *(Column(name, justify="right") for name in names), title=title)
    for label, values in there.items():
        cells = []
        for name in names:
            cells.append(f"{values[name]:.3f}" if name in values else "-")
        table.add_row(label, *cells)
    console.print(table if there else title)
