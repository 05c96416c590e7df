"""A run's folder and its records: metrics.jsonl, trace.jsonl, what trackers are told, curves."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from nemo_algos.engines.local.schema import LoggerSection
from nemo_algos.jsonl import (
    Metrics,
    Step,
    append_lines,
    lock_folder,
    read_lines,
    refuse_links_out,
    replace,
)
from nemo_algos.style import save

METRICS = "metrics.jsonl"  # is there from the first finished step on
HELD = "training in"


@contextmanager
def open_folder(folder: Path | None, log_dir: Path) -> Iterator[Path]:
    """This folder, else a new one below log_dir; a new one without a step is removed at the end.

    Raises ValueError where another process trains there, or a link leads out of it.
    """
    new = folder is None or not folder.exists()
    if folder is None:
        folder, lock = _create_numbered(log_dir)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links_out(folder)
        lock = lock_folder(folder, HELD)
    try:
        with lock:
            yield folder
    finally:
        if new and not (folder / METRICS).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _create_numbered(log_dir: Path) -> tuple[Path, IO[str]]:
    """The first free one of log_dir/exp_001, exp_002, ..., as NeMo-RL numbers them.

    The last is free where its process was killed before a step.
    """
    taken = []
    for p in log_dir.glob("exp_*"):
        if p.name[4:].isdigit():
            taken.append(int(p.name[4:]))
    for number in count(max(taken, default=1)):
        folder = log_dir / f"exp_{number:03d}"
        ended = (folder / "lock").is_file() and not (folder / METRICS).exists()
        try:
            folder.mkdir(parents=True, exist_ok=ended)
            lock = lock_folder(folder, HELD)
        except (FileExistsError, ValueError):  # another process's, or a run's
            continue
        if not (folder / METRICS).exists():
            return folder, lock
        lock.close()
    raise AssertionError


Send = Callable[[dict[str, float], int], object]


class TrackedRun(NamedTuple):
    """A run as trackers are told of it: done is its steps so far, id is no other run's."""

    folder: Path
    config: dict[str, Any]
    id: str
    done: int


@contextmanager
def tensorboard(run: TrackedRun, settings: LoggerSection) -> Iterator[Send]:
    """Files in the run's folder; what a kill has left of later steps is hidden."""
    from torch.utils.tensorboard.writer import SummaryWriter

    with SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.done + 1) as writer:
        yield lambda metrics, step: [writer.add_scalar(k, v, step) for k, v in metrics.items()]


@contextmanager
def wandb(run: TrackedRun, settings: LoggerSection) -> Iterator[Send]:
    """A resumed run goes on in its own. Its files, which link elsewhere, are beside the folder."""
    import wandb  # pyright: ignore[reportMissingImports]

    named = {"name": run.folder.name, **settings.wandb.model_dump(exclude_none=True)}
    options = {"dir": run.folder.parent, "id": run.id, "resume": "allow", "config": run.config}
    with wandb.init(**options, **named) as made:
        yield lambda metrics, step: made.log(metrics, step=step)


@contextmanager
def trackio(run: TrackedRun, settings: LoggerSection) -> Iterator[Send]:
    """As W&B. Its runs are told apart by their names alone, so the id is a part of the name."""
    import trackio  # pyright: ignore[reportMissingImports]

    section = settings.trackio
    name = f"{section.name} {run.id}" if section.name else run.id
    made = trackio.init(project=section.project, name=name, resume="allow", config=run.config)
    yield lambda metrics, step: made.log(metrics, step=step)
    made.finish()


@contextmanager
def mlflow(run: TrackedRun, settings: LoggerSection) -> Iterator[Send]:
    """A resumed run goes on in its own, which a tag tells. MLflow's names have no @."""
    import mlflow  # pyright: ignore[reportMissingImports]

    section = settings.mlflow
    tag = "nemo_algos"
    if section.tracking_uri:
        mlflow.set_tracking_uri(section.tracking_uri)
    mlflow.set_experiment(section.experiment_name)
    there = mlflow.search_runs(filter_string=f"tags.{tag} = '{run.id}'", output_format="list")
    new = {"run_name": section.run_name or run.folder.name, "tags": {tag: run.id}}
    with mlflow.start_run(**({"run_id": there[0].info.run_id} if there else new)):
        mlflow.log_dict(run.config, "config.json")
        yield lambda metrics, step: mlflow.log_metrics(
            {name.replace("@", "_at_"): value for name, value in metrics.items()}, step
        )


TRACKERS: dict[str, Callable[[TrackedRun, LoggerSection], AbstractContextManager[Send]]] = {
    tracker.__name__: tracker for tracker in (tensorboard, wandb, mlflow, trackio)
}


def enabled_names(settings: LoggerSection) -> list[str]:
    return [name for name in TRACKERS if getattr(settings, f"{name}_enabled")]


class StepMetrics(Metrics, Step):
    """A line of metrics.jsonl."""


class Log:
    """Use as a context manager; `write` once per step."""

    def __init__(
        self, settings: LoggerSection, run: TrackedRun, say: Callable[[str], None]
    ) -> None:
        """Drop the lines after `run.done`, the steps behind a resumed run."""
        self.path = run.folder / METRICS
        self.traces = run.folder / "trace.jsonl"
        self.settings = settings
        self.run = run
        self.say = say
        self.waiting: list[dict[str, float]] = []  # of step 0, until there is another
        self.senders: dict[str, Send] = {}
        self.open = ExitStack()
        for path in (self.path, self.traces):
            if path.exists():
                kept = [row for row in read_lines(path, Step) if row["step"] <= run.done]
                replace(path, "".join(json.dumps(row) + "\n" for row in kept))

    def __enter__(self) -> Self:
        """Raises ValueError for a tracker that cannot be begun with."""
        for name in enabled_names(self.settings):
            try:
                told = TRACKERS[name](self.run, self.settings)
                self.senders[name] = self.open.enter_context(told)
            except Exception as error:  # whatever a library raises
                self.open.close()
                raise ValueError(f"logger.{name}_enabled: {error}") from error
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.open.close()
        except Exception as failure:  # whatever a library raises: nothing is lost here by it
            self.say(f"a tracker failed to close: {failure}")

    def write(
        self, step: int, metrics: dict[str, float], traces: Sequence[dict[str, Any]] = ()
    ) -> dict[str, float]:
        """A line of metrics.jsonl; traces: lines of trace.jsonl."""
        row = {"step": step, **metrics}
        self.waiting.append(row)
        if step:
            append_lines(self.path, self.waiting)
            self.waiting.clear()
        if traces:
            append_lines(self.traces, traces)
        for name, send in list(self.senders.items()):
            try:
                send(metrics, step)
            except Exception as error:  # as above
                self.say(f"logging to {name} is disabled from step {step} on: {error}")
                del self.senders[name]
        return row


def read(folder: Path) -> list[dict[str, float]]:
    """The lines of a run: one of each step, and one of each evaluation, after its step's."""
    return list(read_lines(folder / METRICS, StepMetrics))


CURVES = {
    "reward": ("reward/mean", "validation/accuracy"),
    "entropy (nats)": ("entropy/exact",),
    "clip fraction": ("clip/fraction", "clip/positive_above", "clip/negative_below"),
    "ratio": ("ratio/mean", "ratio/p99", "ratio/max"),
    "KL to the sampling policy (nats)": ("kl/old",),
    "gradient norm": ("grad_norm",),
}


def plot(folder: Path, title: str) -> Path:
    """curves.png: six panels over steps."""
    from matplotlib.ticker import MaxNLocator

    rows = read(folder)
    path = folder / "curves.png"
    with save(path, (12, 6.5), 3, nrows=2, dpi=110) as (figure, axes):
        for axis, (name, keys) in zip(axes.flat, CURVES.items(), strict=True):
            for key in keys:
                points = []
                for r in rows:
                    if key in r:
                        points.append((r["step"], r[key]))
                if points:
                    axis.plot(*zip(*points, strict=True), label=key, linewidth=1.3)
            axis.set_title(name)
            axis.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
            if len(axis.lines) > 1:
                axis.legend(fontsize=7)
        for axis in axes[1]:
            axis.set_xlabel("step")
        figure.suptitle(title, fontsize=12)
    return path
