"""What a run comes to: metrics by step, the best checkpoint, summary.json, the last words."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from pydantic import Field
from rich.console import Console
from rich.table import Table

from nemo_algos.config import did_you_mean
from nemo_algos.engines.local import checkpoint
from nemo_algos.engines.local.logs import plot, read
from nemo_algos.engines.local.lora import load_trained
from nemo_algos.engines.local.schema import GRPOSection, LocalConfig
from nemo_algos.engines.local.screen import say
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.jsonl import JsonObject, read_object

HELD_OUT = "validation/"


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
        """A line of metrics.jsonl."""
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
        """Raises ValueError where the first step has no such metric."""
        if 1 not in self.rows and self.metric not in ("", *metrics) and HELD_OUT not in self.metric:
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
    done = f"{folder} is already at step {step} of {last}{ended}"
    return f"{done}. To continue, raise `grpo.{key}`."


def write(trainer: Trainer, record: Record, console: Console) -> None:
    """Save the models, draw the curves, write summary.json, and say where things are."""
    folder = record.folder
    step = trainer.step_number
    name = trainer.algorithm.name
    _save(trainer, folder / "model")
    curves = plot(folder, f"{_title(record, name)}, seed {record.config.grpo.seed}")
    best = _best(trainer, record)
    name_of = record.metric
    trained = [row for row in record.rows.values() if "tokens_per_second" in row]
    seconds = sum(row.get("time/seconds", 0.0) for row in trained)
    found = {
        "method": name,
        "steps": step,
        "before": record.held_out(0),
        "after": record.held_out(step),
        **({"best": {"step": best, name_of: record.rows[best][name_of]}} if best else {}),
        "seconds": seconds,
        "tokens_per_second": median([row["tokens_per_second"] for row in trained] or [0.0]),
    }
    (folder / "summary.json").write_text(json.dumps(found, indent=2))
    steps = {"before": 0, "after": step} | ({f"best, step {best}": best} if best else {})
    if ended := threshold_message(record.config.grpo, record.held_out(step)):
        say(console, f"ended early{ended}")
    _say(
        console,
        f"{_title(record, name)}: {step} steps in {seconds:.1f} s",
        {label: record.held_out(s) for label, s in steps.items()},
    )
    lines = [f"run folder   {folder}", f"curves       {curves}"]
    lines += [f"model        {folder / 'model'}  (Hugging Face format)"]
    lines += [f"best model   {folder / 'best_model'}  (step {best})"] * bool(best)
    lines += [f"TensorBoard  uvx tensorboard --logdir {folder}"]
    say(console, "\n".join(lines))


def _title(record: Record, method: str) -> str:
    """The run's name, which may be its config's, and its method."""
    name = Path(record.config.logger.log_dir).name
    return method if name in ("", method) else f"{name} ({method})"


def _best(trainer: Trainer, record: Record) -> int:
    """The step of the best checkpoint by the metric, saved as a model; 0 where there is none."""
    folder = record.folder / "checkpoints"
    values = record.values()
    best = next((s for s in checkpoint.ranking(folder, values) if s in values), 0)
    if best:
        state = checkpoint.load(checkpoint.steps(folder)[best])
        load_trained(trainer.policy.model, state["model"])
        _save(trainer, record.folder / "best_model")
    return best


def _save(trainer: Trainer, folder: Path) -> None:
    """With how it was asked, where an evaluation can ask the same."""
    trainer.policy.save(str(folder))
    if trainer.config.data.task == "math":
        trainer.config.data.trained.write(folder)


def _say(console: Console, title: str, evaluations: Mapping[str, dict[str, float]]) -> None:
    """A table of the evaluations; accuracy is pass@1 where rewards are 0 and 1."""
    there = {label: values for label, values in evaluations.items() if values}
    names = dict.fromkeys(name for values in there.values() for name in values)
    if all(math.isclose(v["accuracy"], v.get("pass@1", math.nan)) for v in there.values()):
        names.pop("accuracy", None)
    table = Table("held out", *names, title=title)
    for label, values in there.items():
        table.add_row(label, *(f"{values[n]:.3f}" if n in values else "-" for n in names))
    console.print(table if there else title)
