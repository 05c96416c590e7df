"""A paper's runs as they are there: folders, whether they are the manifest's, their numbers."""

from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from nemo_algos.lab.replicate.manifest import RATES, TRAINING, Item, Paper, PaperCell
from nemo_algos.lab.replicate.ours import other_evaluation, other_run
from nemo_algos.lab.replicate.seed import Seed
from nemo_algos.lab.report.compare import BUCKETS, compare, interval_of_mean
from nemo_algos.lab.report.runs import Series
from nemo_algos.lab.report.training import CURVES

LATE = 10  # the last steps, whose mean is a number of training
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
    """Why a number is not there: a sentence, or one for each benchmark of a mean."""


def metrics_of(name: str) -> tuple[str, ...]:
    """The metrics of training that a short name stands for, the first that a run has counts."""
    short = {chart.name: chart.metrics for chart in CURVES} | {"seconds": SECONDS}
    return short.get(name, (name,))


class Results:
    """The runs of a paper in some folders, each FOLDER/PAPER/MODEL/METHOD[-seedN]."""

    def __init__(self, manifest: Paper, paper: str, folders: Sequence[Path]) -> None:
        self.manifest, self.paper, self.folders = manifest, paper, folders
        self.found: dict[str, list[Seed]] = {}
        self.refused: dict[str, None] = {}  # sentences, once each

    def _there(self, run: str) -> list[Seed]:
        """The run's folders."""
        places = [folder / self.paper / run for folder in self.folders]
        paths = [p for place in places for p in (place, *place.parent.glob(f"{place.name}-seed*"))]
        return [Seed(path) for path in sorted({p.resolve() for p in paths if p.is_dir()})]

    def seeds(self, run: str) -> list[Seed]:
        """Those that are the manifest's. What is another's is in `refused`, and not used."""
        if run not in self.found:
            self.found[run] = []
            for seed in self._there(run):
                if wrong := other_run(self.manifest, run, seed):
                    self._refuse(f"{seed.folder} is a run of another {wrong}")
                else:
                    self.found[run].append(seed)
        return self.found[run]

    def absent(self, run: str) -> list[str]:
        """The seeds without a folder, a sentence; a folder without a number is any of them."""
        there = self._there(run)
        if not there:
            return [f"{run}: {'no run' if self.manifest.trains(run) else 'not evaluated'}"]
        named = {seed.number for seed in there}
        wanted = range(1, self.manifest.seeds + 1) if self.manifest.trains(run) else ()
        numbers = [str(n) for n in wanted if n not in named]
        numbers = numbers[sum(seed.number is None for seed in there) :]
        return [f"{run}: no run of seed {', '.join(numbers)}"] if numbers else []

    def _refuse(self, sentence: str) -> None:
        self.refused[f"{sentence}: its numbers are not used"] = None

    def value(self, item: Item, cell: PaperCell) -> tuple[Value | None, list[str]]:
        """Over seeds where there are several, and what of them is not there."""
        each, reasons = list[Value](), self.absent(cell.run)
        for seed in self.seeds(cell.run):
            try:
                each.append(self._of_seed(item, cell, seed))
            except Absent as absent:
                reasons += absent.args
        return (self._in_unit(cell, _over_seeds(each)) if each else None), reasons

    def by_checkpoint(
        self, item: Item, run: str, metric: str, seed: Seed
    ) -> tuple[Series, list[str]]:
        """The metric at each of the seed's checkpoints, over steps; what is not evaluated."""
        folder = self.manifest.evaluations[item.evaluations[0]].folder
        found: Series = ([], [])
        benchmark, name = metric.split()
        lacking = list[str]()
        for step in seed.checkpoints(folder):
            cell = PaperCell(run, (benchmark,), name, step=step)
            try:
                value = self._in_unit(cell, self._measure(item, cell, seed, benchmark)).value
            except Absent as absent:
                lacking.append(str(absent))
                continue
            found[0].append(step)
            found[1].append(value)
        return found, lacking

    def _in_unit(self, cell: PaperCell, value: Value) -> Value:
        percent = self.manifest.unit == "percent" and RATES.fullmatch(cell.metric)
        return _scaled(value, 100.0 if percent else 1.0)

    def _of_seed(self, item: Item, cell: PaperCell, seed: Seed) -> Value:
        if cell.benchmarks == (TRAINING,):
            return Value(_late(seed, cell), None, None)
        parts, lacking = list[Value](), list[str]()
        for benchmark in cell.benchmarks:
            try:
                parts.append(self._measure(item, cell, seed, benchmark))
            except Absent as absent:
                lacking += absent.args
        if lacking:
            raise Absent(*lacking)
        return _mean(parts)

    def measured(self, item: Item, cell: PaperCell, seed: Seed, benchmark: str) -> dict[str, Any]:
        """What `measure` says of the benchmark. Raises Absent, also where it is another's."""
        name = cell.evaluation or item.evaluations[0]
        folder = self.manifest.evaluations[name].folder
        folder = folder if cell.step is None else f"{folder}-{cell.step}"
        loaded = seed.evaluation_run(folder)
        if loaded is None or benchmark not in loaded.evals:
            raise Absent(f"{seed.name}: not evaluated on {benchmark} ({folder}/{benchmark})")
        made, evals = loaded.manifest["eval"][benchmark], loaded.evals[benchmark]
        if wrong := other_evaluation(self.manifest, self.paper, cell.run, name, made, evals, seed):
            self._refuse(f"{loaded.eval_folders[benchmark]} {wrong}")
            raise Absent(f"{seed.name}: the evaluation on {benchmark} is another ({folder})")
        return evals

    def _measure(self, item: Item, cell: PaperCell, seed: Seed, benchmark: str) -> Value:
        found = self.measured(item, cell, seed, benchmark)
        if cell.metric.startswith("flip/"):
            return Value(self._flips(item, cell, found, benchmark), None, None)
        name, _, k = cell.metric.partition("@")
        if not k:
            if name not in found["scalars"]:
                raise Absent(f"{seed.name}: {benchmark} has no {name}")
            return Value(*(found["scalars"][name][part] for part in ("value", "low", "high")))
        curve = found["curves"].get(f"{name}@k", {"k": []})
        if int(k) not in curve["k"]:
            raise Absent(
                f"{seed.name}: no {cell.metric} of {found['samples']} samples on {benchmark}"
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


def _late(seed: Seed, cell: PaperCell) -> float:
    names = [name for name in metrics_of(cell.metric) if name in seed.trained.metrics]
    if not names:
        raise Absent(f"{seed.name}: {cell.metric} of training is not recorded")
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
    mean, low, high = interval_of_mean([value.value for value in each])
    return Value(mean, low, high, len(each))


def _scaled(value: Value, factor: float) -> Value:
    low, high = (None if x is None else factor * x for x in (value.low, value.high))
    return Value(factor * value.value, low, high, value.seeds)
