"""A paper's runs as they are there: folders, whether they are the manifest's, their numbers."""

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from nemo_algos.algorithms.build import build
from nemo_algos.config import ConfigError, at, find, load
from nemo_algos.lab.replicate.manifest import RATES, TRAINING, Item, Paper, PaperCell
from nemo_algos.lab.report.compare import BUCKETS, compare
from nemo_algos.lab.report.runs import LoadedRun, Series, evaluations, read_events, read_run
from nemo_algos.lab.report.training import CURVES
from nemo_algos.lab.study.summary import estimate

LATE = 10  # the last steps, whose mean is a number of training
SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "max_tokens": None,
    "perturbation": None,
}  # `nemo-algos eval`'s defaults
HARDNESS: dict[str, int] = dict(
    zip(("very_hard", "hard", "medium", "easy"), BUCKETS[1:], strict=True)
)
SECONDS = ("time/seconds", "timing/train/total_step_time")


class Value(NamedTuple):
    """A number with its interval over seeds, of one seed over problems; None: it has none."""

    value: float
    low: float | None
    high: float | None
    seeds: int = 1


class Absent(Exception):
    """Why a number is not there."""


def metrics_of(name: str) -> tuple[str, ...]:
    """The metrics of training that a short name stands for, the first that a run has counts."""
    short = {chart.name: chart.metrics for chart in CURVES} | {"seconds": SECONDS}
    return short.get(name, (name,))


class Seed:
    """A run's folder, of one seed: its training where it is kept, and its evaluations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def trained(self) -> LoadedRun:
        """Of the embedded engine, or NeMo-RL's logs; without metrics where there are none."""
        if (self.folder / "metrics.jsonl").exists():
            return read_run(self.folder)
        return LoadedRun("", self.folder, metrics=read_events(self.folder))

    def evaluated(self, folder: str) -> LoadedRun | None:
        """The evaluations in a folder of the run's; None where none has ended."""
        place = self.folder / folder
        return read_run(place) if evaluations(place) else None

    @cached_property
    def config(self) -> dict[str, Any]:
        """As recorded by the run, or as submitted; empty where it is not there."""
        submitted = self.folder / "config.yaml"
        return self.trained.config or (load(submitted) if submitted.exists() else {})


class Results:
    """The runs of a paper in some folders, each FOLDER/PAPER/MODEL/METHOD[-seedN]."""

    def __init__(self, manifest: Paper, paper: str, folders: Sequence[Path]) -> None:
        self.manifest, self.paper, self.folders = manifest, paper, folders
        self.found: dict[str, list[Seed]] = {}
        self.refused: dict[str, None] = {}  # sentences, once each

    def seeds(self, run: str) -> list[Seed]:
        """Those that are the manifest's. What is another's is in `refused`, and not used."""
        if run not in self.found:
            places = [folder / self.paper / run for folder in self.folders]
            paths = [
                p for place in places for p in (place, *place.parent.glob(f"{place.name}-seed*"))
            ]
            seeds = [Seed(path) for path in sorted({p.resolve() for p in paths if p.is_dir()})]
            self.found[run] = [seed for seed in seeds if self._is_ours(run, seed)]
        return self.found[run]

    def _is_ours(self, run: str, seed: Seed) -> bool:
        if not self.manifest.trains(run):
            return True
        model, method = self.manifest.of(run)
        name, block = at(seed.config, "policy.model_name"), seed.config.get("method")
        wrong = f"model {name}, not {model.base}" if name and name != model.base else ""
        if not wrong and block and not _same(block, method.method):
            wrong = f"method {block}, not {method.method}"
        return not (wrong and self._refuse(f"{seed.folder} is a run of another {wrong}"))

    def _refuse(self, sentence: str) -> bool:
        self.refused[f"{sentence}: its numbers are not used"] = None
        return True

    def value(self, item: Item, cell: PaperCell) -> Value:
        """Over seeds where there are several. Raises Absent."""
        if reason := self.manifest.lacks(cell.run):
            raise Absent(f"{cell.run}: {reason}")
        if not (seeds := self.seeds(cell.run)):
            raise Absent(f"{cell.run}: no run")
        each, reasons = list[Value](), list[str]()
        for seed in seeds:
            try:
                each.append(self._of_seed(item, cell, seed))
            except Absent as absent:
                reasons.append(str(absent))
        if not each:
            raise Absent(reasons[0])
        return self._in_unit(cell, _over_seeds(each))

    def by_checkpoint(self, item: Item, run: str, metric: str, seed: Seed) -> Series:
        """The steps of the seed's checkpoints that are evaluated, and the metric at each."""
        folder = self.manifest.evaluations[item.evaluations[0]].folder
        ends = [path.name.removeprefix(f"{folder}-") for path in seed.folder.glob(f"{folder}-*")]
        found: Series = ([], [])
        benchmark, name = metric.split()
        for step in sorted(int(end) for end in ends if end.isdecimal()):
            cell = PaperCell(run, (benchmark,), name, step=step)
            with suppress(Absent):
                value = self._in_unit(cell, self._measured(item, cell, seed, benchmark)).value
                found[0].append(step)
                found[1].append(value)
        return found

    def _in_unit(self, cell: PaperCell, value: Value) -> Value:
        percent = self.manifest.unit == "percent" and RATES.fullmatch(cell.metric)
        return _scaled(value, 100.0 if percent else 1.0)

    def _of_seed(self, item: Item, cell: PaperCell, seed: Seed) -> Value:
        if cell.benchmarks == (TRAINING,):
            return Value(_late(seed, cell), None, None)
        parts = [self._measured(item, cell, seed, benchmark) for benchmark in cell.benchmarks]
        return _mean(parts)

    def measured(self, item: Item, cell: PaperCell, seed: Seed, benchmark: str) -> dict[str, Any]:
        """What `measure` says of the benchmark. Raises Absent, also where it is another's."""
        name = cell.evaluation or item.evaluations[0]
        folder = self.manifest.evaluations[name].folder
        folder = folder if cell.step is None else f"{folder}-{cell.step}"
        loaded = seed.evaluated(folder)
        if loaded is None or benchmark not in loaded.evals:
            raise Absent(f"{cell.run}: not evaluated on {benchmark} ({folder}/{benchmark})")
        if wrong := self._other(name, cell.run, loaded.manifest["eval"][benchmark], benchmark):
            self._refuse(f"{loaded.eval_folders[benchmark]} {wrong}")
            raise Absent(f"{cell.run}: the evaluation on {benchmark} is another")
        return loaded.evals[benchmark]

    def _other(self, name: str, run: str, made: dict[str, Any], benchmark: str) -> str:
        """How the evaluation is not the manifest's; empty where it is."""
        model, evaluation = self.manifest.of(run)[0], self.manifest.evaluations[name]
        asked = str(at(made, "model.model"))
        if not self.manifest.trains(run) and asked not in (model.base, "None"):
            return f"evaluates {asked}, not {model.base}"
        if (
            self.manifest.trains(run)
            and at(made, "model.engine") == "endpoint"
            and asked == model.base
        ):
            return f"evaluates {asked}, which is not trained"
        wanted = load(find(evaluation.config), [*evaluation.overrides, *model.sampling])
        for key, ours in {**SAMPLING, **(at(made, "sampling") or {})}.items():
            theirs = (at(wanted, "sampling") or {}).get(key, SAMPLING.get(key))
            if key in SAMPLING and ours != theirs:
                return f"samples with {key} {ours}, not {theirs}"
        return ""

    def _measured(self, item: Item, cell: PaperCell, seed: Seed, benchmark: str) -> Value:
        found = self.measured(item, cell, seed, benchmark)
        if cell.metric.startswith("flip/"):
            return Value(self._flips(item, cell, found, benchmark), None, None)
        name, _, k = cell.metric.partition("@")
        if not k:
            if name not in found["scalars"]:
                raise Absent(f"{cell.run}: {benchmark} has no {name}")
            return Value(*(found["scalars"][name][part] for part in ("value", "low", "high")))
        curve = found["curves"].get(f"{name}@k", {"k": []})
        if int(k) not in curve["k"]:
            raise Absent(
                f"{cell.run}: no {cell.metric} of {found['samples']} samples on {benchmark}"
            )
        i = curve["k"].index(int(k))
        return Value(*(curve[part][i] for part in ("value", "low", "high")))

    def _flips(self, item: Item, cell: PaperCell, tuned: dict[str, Any], benchmark: str) -> float:
        base = f"{cell.run.split('/')[0]}/base"
        if not (seeds := self.seeds(base)):
            raise Absent(f"{base}: no run, and flips are counted from it")
        before = self.measured(item, cell._replace(run=base), seeds[0], benchmark)
        limit = HARDNESS[cell.metric.partition("/")[2]] * before["samples"] / BUCKETS[-1]
        try:
            buckets = compare(before, tuned)["buckets"]
        except ValueError as error:
            raise Absent(f"{cell.run}: {error}") from None
        rates = [b["flip_rate"] for b in buckets if b["up_to"] == limit]
        if not rates or rates[0] is None:
            raise Absent(
                f"{cell.run}: no problem of {benchmark} is {cell.metric.partition('/')[2]}"
            )
        return rates[0]


def _same(recorded: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether both are one method with the same parameters, defaults written or not."""
    try:
        return build(recorded) == build(wanted)
    except ConfigError:
        return False


def _late(seed: Seed, cell: PaperCell) -> float:
    names = [name for name in metrics_of(cell.metric) if name in seed.trained.metrics]
    if not names:
        raise Absent(f"{cell.run}: {cell.metric} of training is not recorded")
    return fmean(seed.trained.metrics[names[0]][1][-LATE:])


def _mean(parts: Sequence[Value]) -> Value:
    """Over benchmarks, whose problems are drawn apart: half-widths add in squares."""
    mean, n = fmean(p.value for p in parts), len(parts)
    if any(p.low is None or p.high is None for p in parts):
        return Value(mean, None, None)
    low, high = (sqrt(sum((p.value - (p[i] or 0.0)) ** 2 for p in parts)) / n for i in (1, 2))
    return Value(mean, mean - low, mean + high)


def _over_seeds(each: Sequence[Value]) -> Value:
    if len(each) == 1:
        return each[0]
    found = estimate([value.value for value in each])
    return Value(found.mean, found.low, found.high, len(each))


def _scaled(value: Value, factor: float) -> Value:
    low, high = (None if x is None else factor * x for x in (value.low, value.high))
    return Value(factor * value.value, low, high, value.seeds)
