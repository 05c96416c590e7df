"""A paper's manifest: its tables and figures with every printed number, and the runs they need.

    models: {qwen3-8b: {base: Qwen/Qwen3-8B-Base, recipe: recipes/etr-qwen3-8b-base-1n8g-fsdp.yaml}}
    methods: {base: {}, etr: {method: {name: etr}}}
    items:
      table1:
        blocks:
          - columns: [amc23 mean, amc23 best@32]      # or amc23+aime24 mean: over both
            rows: [{label: ETR, run: qwen3-8b/etr, printed: [0.790, 0.967]}]

A run is MODEL/METHOD: the model's recipe with the method's keys; without `method` the model as it
is. A row names its run and the columns benchmarks, or the row its benchmark and the columns runs.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from nemo_algos.config import SHIPPED, Section, did_you_mean, find, load, validate
from nemo_algos.lab.evals.benchmarks.registry import BENCHMARKS

TRAINING = "train"  # in place of a benchmark: a metric of training
RATES = re.compile(
    r"(pass|pass\^|best|maj)@\d+|mean|boxed|ucr|flip/.*"
)  # in percent, if printed so
Numbers = list[float | None]


class Data(Section):
    """Training data. sha256: of the file, where it is known."""

    source: str
    rows: int | None = None
    sha256: str = ""


class Serve(Section):
    """What vLLM needs for a model: tensor_parallel GPUs of a node, on so many nodes."""

    tensor_parallel: int = Field(default=1, gt=0)
    nodes: int = Field(default=1, gt=0)


class PaperModel(Section):
    """What runs start from; without a recipe it is only evaluated.

    data: by name, trained on first, then what validation reads. sampling: overrides of its
    evaluations. toy: overrides of its toy runs, or why it has none.
    """

    base: str
    recipe: str = ""
    data: list[str] = Field(default=[])
    serve: Serve = Serve()
    overrides: list[str] = Field(default=[])
    sampling: list[str] = Field(default=[])
    toy: list[str] | str = Field(default=[])


class PaperMethod(Section):
    """The keys of `method:`, and other keys that a baseline sets.

    program: the words of one of NeMo-RL's own that trains in place of the recipe; {base} in a word
    is what the run starts from.
    """

    method: dict[str, Any] = Field(default={})
    program: list[str] = Field(default=[])
    overrides: list[str] = Field(default=[])

    @property
    def keys(self) -> list[str]:
        """What it sets over a recipe."""
        method = [f"method.{key}={_format(value)}" for key, value in self.method.items()]
        return [*method, *self.overrides]


class PaperEvaluation(Section):
    """A config of `nemo-algos eval`. folder: below the run's.

    every_checkpoint: not of the last checkpoint alone; each has its own folder, FOLDER-STEP.
    """

    config: str
    overrides: list[str] = Field(default=[])
    folder: str = "eval"
    every_checkpoint: bool = False


class PaperCell(NamedTuple):
    """A number of a table; None where the paper prints none. spread: the paper's ±.

    step: of the checkpoint that is evaluated, if not the last.
    """

    run: str
    benchmarks: tuple[str, ...]
    metric: str
    printed: float | None = None
    spread: float | None = None
    evaluation: str = ""
    step: int | None = None


class PaperRow(Section):
    """Numbers of a run, or of a benchmark. evaluation: if not the item's first."""

    label: str
    run: str = ""
    benchmark: str = ""
    evaluation: str = ""
    printed: Numbers = Field(default=[])
    spread: Numbers = Field(default=[])


class Block(Section):
    """Rows under the same columns."""

    title: str = ""
    columns: list[str] = Field(min_length=1)
    rows: list[PaperRow] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for row in self.rows:
            for numbers in (row.printed, row.spread):
                if len(numbers) not in (0, len(self.columns)):
                    said = f"{len(numbers)} numbers under {len(self.columns)} columns"
                    raise ValueError(
                        f"the row {row.label} has {said}. Write null for a missing number."
                    )
            if bool(row.run) == bool(row.benchmark):
                raise ValueError(f"the row {row.label} must name either a run or a benchmark")
        if wrong := [column for column in self.columns if len(column.split()) != 2]:
            raise ValueError(f"column {wrong[0]!r}: write it as BENCHMARK METRIC or RUN METRIC")
        return self

    def cells(self, row: PaperRow) -> list[PaperCell]:
        """One for each column."""
        blank: Numbers = [None] * len(self.columns)
        numbers = zip(row.printed or blank, row.spread or blank, strict=True)
        return [_cell(row, c, *n) for c, n in zip(self.columns, numbers, strict=True)]


def _cell(row: PaperRow, column: str, printed: float | None, spread: float | None) -> PaperCell:
    named, metric = column.split()
    run, benchmarks = (row.run, named) if row.run else (named, row.benchmark)
    return PaperCell(run, tuple(benchmarks.split("+")), metric, printed, spread, row.evaluation)


class Item(Section):
    """A table or a figure.

    blocks: of a table, or of bars. runs, metrics: of curves over steps, of a histogram, of tokens;
    a curve's metric is one of training, or BENCHMARK METRIC of every checkpoint's evaluation.
    said: sentences of the paper with numbers. note: what ours is otherwise, or of a text why there
    is nothing to run.
    """

    title: str
    kind: Literal["table", "bars", "curves", "histogram", "matrix", "tokens", "text"]
    evaluations: list[str] = Field(default=[])
    blocks: list[Block] = Field(default=[])
    runs: list[str] = Field(default=[])
    metrics: list[str] = Field(default=[])
    benchmarks: list[str] = Field(default=[])
    said: list[str] = Field(default=[])
    note: str = ""
    toy: bool = True

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.kind == "text" and not self.note:
            raise ValueError("`note` is missing: say why there is nothing to run")
        if self.kind in ("table", "bars") and not self.blocks:
            raise ValueError("`blocks` is missing: a table needs it")
        drawn = self.kind in ("curves", "histogram", "matrix", "tokens")
        if drawn and not (self.runs and self.metrics):
            raise ValueError("`runs` or `metrics` is missing: a figure needs both")
        return self

    def cells(self) -> Iterator[PaperCell]:
        """Of all blocks; of pairs of responses one per run and benchmark."""
        for block in self.blocks:
            for row in block.rows:
                yield from block.cells(row)
        if self.kind in ("histogram", "matrix"):
            yield from (
                PaperCell(run, (b,), "histogram") for run in self.runs for b in self.benchmarks
            )

    def needed_runs(self) -> list[str]:
        """Its runs, once each."""
        flips = (c for c in self.cells() if c.metric.startswith("flip/"))
        bases = [f"{cell.run.split('/')[0]}/base" for cell in flips]
        return list(dict.fromkeys([*(c.run for c in self.cells()), *self.runs, *bases]))


class Misprint(Section):
    """What does not add up in the paper, with the arithmetic."""

    item: str
    says: str


class Paper(Section):
    """A paper. unit: of printed rates; settings: what it leaves open: topic, paper, here.

    After these three a setting names the items, models, methods or data that it is of, else all.
    """

    title: str
    link: str = ""
    claim: str
    unit: Literal["fraction", "percent"]
    gpu: str = "H100"
    seeds: int = 1
    label: str = ""
    """What every picture begins with."""
    models: dict[str, PaperModel]
    methods: dict[str, PaperMethod]
    evaluations: dict[str, PaperEvaluation] = Field(default={})
    data: dict[str, Data]
    settings: list[list[str]] = Field(default=[])
    misprints: list[Misprint] = Field(default=[])
    items: dict[str, Item]

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for name, item in self.items.items():
            for run in item.needed_runs():
                model, _, method = run.partition("/")
                _check_known(f"items.{name}: model", model, self.models)
                _check_known(f"items.{name}: method", method, self.methods)
            for evaluation in item.evaluations:
                _check_known(f"items.{name}: evaluation", evaluation, self.evaluations)
            curves = [metric.split()[0] for metric in item.metrics if " " in metric]
            for benchmark in {*curves, *(b for c in item.cells() for b in c.benchmarks)} - {
                TRAINING
            }:
                _check_known(f"items.{name}: benchmark", benchmark, BENCHMARKS)
        for name, model in self.models.items():
            if bool(model.recipe) != bool(model.data):
                raise ValueError(f"`models.{name}` needs both `recipe` and `data`, or neither")
            for data in model.data:
                _check_known(f"models.{name}.data:", data, self.data)
        parts = [*self.items, *self.models, *self.methods, *self.data]
        for part in chain(*(setting[3:] for setting in self.settings)):
            _check_known("settings: part", part, parts)
        for misprint in self.misprints:
            _check_known("misprints: item", misprint.item, self.items)
        return self

    def of(self, run: str) -> tuple[PaperModel, PaperMethod]:
        """A run's two halves."""
        model, _, method = run.partition("/")
        return self.models[model], self.methods[method]

    def trains(self, run: str) -> bool:
        """Whether the run is one of training, and not a model as it is."""
        return self.by_recipe(run) or bool(self.of(run)[1].program)

    def by_recipe(self, run: str) -> bool:
        """Whether the model's recipe trains it: what is planned, submitted and made as a toy."""
        return bool(self.of(run)[1].method)

    def program(self, run: str) -> list[str]:
        """The words of NeMo-RL's own program, [] where none trains the run."""
        model, method = self.of(run)
        return [word.replace("{base}", model.base) for word in method.program]

    def overrides(self, run: str) -> list[str]:
        """What the run sets over its recipe."""
        model, method = self.of(run)
        return [*model.overrides, *method.keys]

    def settings_of(self, name: str) -> list[list[str]]:
        """Topic, paper and here of what the paper leaves open for this item."""
        runs = [self.of(run)[0].data + run.split("/") for run in self.items[name].needed_runs()]
        parts = {name, *chain(*runs)}
        return [known[:3] for known in self.settings if not known[3:] or parts & {*known[3:]}]

    def training_data(self, item: Item) -> dict[str, Data]:
        """The data of the item's runs."""
        models = [self.of(run)[0] for run in item.needed_runs() if self.trains(run)]
        return {name: self.data[name] for model in models for name in model.data}

    def state(self, item: Item) -> str:
        """How many runs of training make the item."""
        if item.kind == "text":
            return f"nothing to run: {item.note}"
        if not (runs := sum(map(self.trains, item.needed_runs()))):
            return "no training: the model as it is"
        return f"{runs} run{'s' * (runs != 1)}{f' x {self.seeds} seeds' * (self.seeds > 1)}"


def _format(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_known(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ValueError(f"{what} {name} does not exist{did_you_mean(name, list(known))}")


def names() -> list[str]:
    """The papers."""
    return sorted(path.stem for path in (SHIPPED / "papers").glob("*.yaml"))


def paper(name: str) -> Paper:
    """A paper's manifest. Raises ValueError with the nearest name for an unknown one."""
    _check_known("the paper", name, names())
    return validate(Paper, load(find(f"papers/{name}.yaml")), name)


def choose(manifest: Paper, item: str) -> dict[str, Item]:
    """One item by name, or all. Raises ValueError with the nearest name for an unknown one."""
    if item:
        _check_known("the item", item, manifest.items)
    return {item: manifest.items[item]} if item else dict(manifest.items)
