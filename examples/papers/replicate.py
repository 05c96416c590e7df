"""The tables and figures of four papers: what they need, how to make it, and what came out.

    python examples/papers/replicate.py plan etr table1                # runs, evaluations, data
    python examples/papers/replicate.py commands etr table1 | bash     # train, serve, evaluate
    python examples/papers/replicate.py table etr table1               # printed numbers and ours

PAPER.yaml beside this file is a paper's manifest: its tables with the printed numbers, and the
settings of the runs. A manifest of your own is found by its path, as ./mine.yaml. A run is
MODEL/METHOD, the model's recipe with the method's keys. Its folder is RUNS/PAPER/MODEL/METHOD,
which ends in -seed1, ... in a paper with several seeds. `toy` is a manifest of the embedded
engine: the same road in some minutes on a laptop.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from math import sqrt
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Annotated, Any, Literal, NamedTuple, Self

import typer
from pydantic import Field, model_validator

from nemo_algos.algorithms.build import build
from nemo_algos.cli import exit_on_error
from nemo_algos.config import apply_overrides, find, load
from nemo_algos.config import read as read_config
from nemo_algos.findings import Section, at, did_you_mean, validate
from nemo_algos.lab.evals.benchmarks import BENCHMARKS
from nemo_algos.preflight.check.judge import judge
from nemo_algos.preflight.check.release import shipped
from nemo_algos.preflight.plan.layouts import Plan
from nemo_algos.preflight.plan.layouts import plan as plan_run
from nemo_algos.preflight.plan.nemo_rl_arguments import GPU, GPUS
from nemo_algos.preflight.plan.report import totals
from nemo_algos.untrusted import refuse_code

HERE = Path(__file__).resolve().parent
RUNS = Path("runs/papers")
NAMES = sorted(path.stem for path in HERE.glob("*.yaml"))
TRAIN = "train"  # in place of a benchmark: a metric of training, the mean of its last steps
LAST_STEPS = 10
IN_PERCENT = re.compile(r"(pass|best)@\d+|mean|boxed|ucr")  # what a paper prints in percent
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_tokens": None, "perturbation": None}  # defaults
METRICS = {  # by short name: what the embedded engine and NeMo-RL call it
    "reward": ["reward/mean"],
    "entropy": ["entropy/exact", "entropy/approximate"],
    "validation": ["validation/accuracy"],
    "length": ["length/mean"],
    "kl_old": ["kl/old"],
    "kl_ref": ["kl/ref"],
    "seconds": ["time/seconds", "timing/train/total_step_time"],
}
SERVE = """set -e
serve() {
  vllm serve "$@" & server=$!
  until curl -sf http://localhost:8000/health > /dev/null; do kill -0 $server; sleep 5; done
}"""
STOP = "kill $server; wait $server || true"
# the converter writes the tokenizer alone, of which vLLM cannot make an image's tokens
PROCESSOR = (
    "import sys, transformers as t; t.AutoProcessor.from_pretrained(sys.argv[1])"
    ".save_pretrained(sys.argv[2])"
)
Numbers = list[float | None]
Series = tuple[list[float], list[float]]  # steps, values


class Model(Section):
    """What runs start from; without a recipe it is evaluated alone."""

    base: str
    recipe: str = ""
    steps: int = Field(default=0, ge=0)
    """Training steps of its runs, where they are not the paper's."""
    data: list[str] = Field(default=[])
    overrides: list[str] = Field(default=[])
    sampling: list[str] = Field(default=[])
    """Keys of its evaluations."""
    serve: list[str] = Field(default=[])
    """Options of `vllm serve`."""
    adapter: bool = False
    """Whether the recipe trains LoRA's weights."""
    images: bool = False


class Method(Section):
    """The keys of `method:`, and others that a baseline sets; the model as it is has none."""

    method: dict[str, Any] = Field(default={})
    overrides: list[str] = Field(default=[])
    program: list[str] = Field(default=[])
    """A program of NeMo-RL's that trains in place of the recipe; {base} is the model."""


class Evaluation(Section):
    """A config of `nemo-algos eval`; its results go to this folder of the run."""

    config: str
    overrides: list[str] = Field(default=[])
    folder: str = "eval"
    every_checkpoint: bool = False
    """Each checkpoint is evaluated, into FOLDER-STEP."""


class Cell(NamedTuple):
    """A number of a table."""

    run: str
    benchmarks: list[str]
    metric: str
    printed: float | None
    spread: float | None
    evaluation: str


class Row(Section):
    """The numbers of a run under columns BENCHMARK METRIC, or of a benchmark under RUN METRIC."""

    label: str
    run: str = ""
    benchmark: str = ""
    evaluation: str = ""
    """Set where several evaluations of the item have the benchmark."""
    printed: Numbers = Field(default=[])
    spread: Numbers = Field(default=[])


class Block(Section):
    """Rows under the same columns; a+b in place of a benchmark is the mean over both."""

    title: str = ""
    columns: list[Annotated[str, Field(pattern=r"^\S+ \S+$")]] = Field(min_length=1)
    rows: list[Row] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for row in self.rows:
            if {len(row.printed), len(row.spread)} - {0, len(self.columns)}:
                wanted = f"{len(self.columns)} numbers, as there are columns"
                raise ValueError(f"row {row.label} must have {wanted}. Write null for a gap.")
            if bool(row.run) == bool(row.benchmark):
                raise ValueError(f"row {row.label} must name either a run or a benchmark")
        return self

    def cells(self, row: Row) -> list[Cell]:
        """One cell for each column."""
        blank: Numbers = [None] * len(self.columns)
        found = []
        for column, printed, spread in zip(
            self.columns, row.printed or blank, row.spread or blank, strict=True
        ):
            named, metric = column.split()
            run, benchmark = (row.run, named) if row.run else (named, row.benchmark)
            cell = Cell(run, benchmark.split("+"), metric, printed, spread, row.evaluation)
            found.append(cell)
        return found


class Item(Section):
    """A table, or a figure: curves over steps, or what `nemo-algos report` draws of the runs.

    A metric of curves is one of training, or BENCHMARK METRIC of every checkpoint's evaluation.
    """

    title: str
    kind: Literal["table", "curves", "report", "text"]
    evaluations: list[str] = Field(default=[])
    blocks: list[Block] = Field(default=[])
    runs: list[str] = Field(default=[])
    metrics: list[str] = Field(default=[])
    said: list[str] = Field(default=[])
    """Sentences of the paper with numbers."""
    note: str = ""

    @property
    def cells(self) -> list[Cell]:
        """The cells of all blocks."""
        return [cell for block in self.blocks for row in block.rows for cell in block.cells(row)]

    @property
    def needed_runs(self) -> list[str]:
        """Its runs, once each."""
        return list(dict.fromkeys([*(cell.run for cell in self.cells), *self.runs]))


class Misprint(Section):
    """What does not add up in the paper, with the arithmetic."""

    item: str
    says: str


class Paper(Section):
    """A paper's manifest. name: of its file."""

    name: str
    title: str
    link: str = ""
    claim: str
    unit: Literal["fraction", "percent"]
    """The unit of the printed rates."""
    gpu: str = ""
    seeds: int = 1
    steps: int = Field(ge=1)
    """Training steps of a run, written into its command."""
    steps_from: str
    """Where the paper states the steps, or that it does not."""
    data: dict[str, str] = Field(default={})
    models: dict[str, Model]
    methods: dict[str, Method]
    evaluations: dict[str, Evaluation]
    settings: list[Annotated[list[str], Field(min_length=3, max_length=3)]] = Field(default=[])
    """What differs: topic, the paper, here."""
    misprints: list[Misprint] = Field(default=[])
    items: dict[str, Item]

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for name, item in self.items.items():
            for run in item.needed_runs:
                check_known(f"items.{name}: model", run.partition("/")[0], self.models)
                check_known(f"items.{name}: method", run.partition("/")[2], self.methods)
            for evaluation in item.evaluations:
                check_known(f"items.{name}: evaluation", evaluation, self.evaluations)
            for benchmark in (b for cell in item.cells for b in cell.benchmarks):
                check_known(f"items.{name}: benchmark", benchmark, [TRAIN, *BENCHMARKS])
        for misprint in self.misprints:
            check_known("misprints: item", misprint.item, self.items)
        return self

    def parts(self, run: str) -> tuple[Model, Method]:
        """The model and the method of a run."""
        model, _, method = run.partition("/")
        return self.models[model], self.methods[method]

    def training_keys(self, model: Model) -> list[str]:
        """The keys that a model sets over its recipe, with the number of training steps."""
        return [*model.overrides, f"grpo.max_num_steps={model.steps or self.steps}"]

    def trains(self, run: str) -> bool:
        """Whether the run is one of training, and not a model as it is."""
        method = self.parts(run)[1]
        return bool(method.method or method.program)

    def places(self, run: str) -> list[str]:
        """PAPER/MODEL/METHOD of each seed: its folder below the common one, and its served name."""
        several = self.seeds > 1 and self.trains(run)
        ends = [f"-seed{seed}" for seed in range(1, self.seeds + 1)] if several else [""]
        return [f"{self.name}/{run}{end}" for end in ends]

    def config(self, evaluation: str, run: str) -> dict[str, Any]:
        """The plain config of an evaluation of a run."""
        own = self.evaluations[evaluation]
        return evaluated(own.config, (*own.overrides, *self.parts(run)[0].sampling))

    def evaluation(self, item: Item, cell: Cell, benchmark: str) -> str:
        """The evaluation that a cell's number of a benchmark is taken from."""
        for name in [cell.evaluation] if cell.evaluation else item.evaluations:
            if self.config(name, cell.run)["benchmarks"].get(benchmark) is not None:
                return name
        raise ValueError(f"{item.title}: none of its evaluations has {benchmark}. Add one.")

    def needs(self, items: dict[str, Item]) -> dict[str, list[str]]:
        """The evaluations that the items need of each run."""
        found: dict[str, dict[str, None]] = {}
        for item in items.values():
            for run in item.runs:
                found.setdefault(run, {}).update(dict.fromkeys(item.evaluations))
            for cell in item.cells:
                wanted = [b for b in cell.benchmarks if b != TRAIN]
                names = dict.fromkeys(self.evaluation(item, cell, b) for b in wanted)
                found.setdefault(cell.run, {}).update(names)
        return {run: list(names) for run, names in found.items()}


def check_known(what: str, name: str, known: Any) -> None:
    """Raises ValueError with the nearest name where it is not among the known ones."""
    if name not in known:
        raise ValueError(f"{what} {name!r} does not exist{did_you_mean(name, list(known))}")


@cache
def evaluated(config: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    """The plain config of an evaluation: hundreds of a paper's cells ask for a few of them."""
    return load(find(config), list(overrides))


@cache
def read(name: str) -> Paper:
    """The manifest of a paper's name, or of a path that ends in .yaml.

    Raises ValueError for an unknown paper, and for a wrong manifest.
    """
    path = Path(name)
    if path.suffix == ".yaml":
        return validate(Paper, {"name": path.stem, **load(path)}, name)
    check_known("the paper", name, NAMES)
    return validate(Paper, {"name": name, **load(HERE / f"{name}.yaml")}, name)


def with_models(paper: Paper, given: list[str]) -> Paper:
    """The paper with other models: each of the given is KEY=HUB_OR_FOLDER.

    Raises ValueError for a key that the manifest does not have.
    """
    models = dict(paper.models)
    for text in given:
        key, _, base = text.partition("=")
        check_known("--model", key, models)
        if not base:
            raise ValueError(f"--model {text}: the model is missing. Write {key}=HUB_OR_FOLDER.")
        keys = [*models[key].overrides, f"policy.model_name={base}"]
        models[key] = models[key].model_copy(update={"base": base, "overrides": keys})
    return paper.model_copy(update={"models": models})


# ---- what it needs


def plan(paper: Paper, items: dict[str, Item], more: Sequence[str] = ()) -> Iterator[str]:
    """The plan in Markdown: items, runs, evaluations and data; what differs, and misprints.

    more: keys of every training, over the recipe's and the manifest's.
    """
    needs = paper.needs(items)
    yield f"# {paper.name.upper()}\n"
    title = f"[{paper.title}]({paper.link})" if paper.link else paper.title
    yield fill(f"{title}. {paper.claim}", 100, break_on_hyphens=False) + "\n"
    yield "| item | title | printed numbers | runs | |\n|---|---|---|---|---|"
    for name, item in items.items():
        printed = sum(cell.printed is not None for cell in item.cells)
        trained = sum(len(paper.places(run)) for run in item.needed_runs if paper.trains(run))
        note = "; ".join(["`nemo-algos report` draws it"] * (item.kind == "report") + [item.note])
        yield f"| {name} | {item.title} | {printed or ''} | {trained or ''} | {note.rstrip('; ')} |"
    models = {run.partition("/")[0] for run in needs}
    costs = "a GPU's memory | seconds of a step | GPU-hours of a run"
    yield f"\n| model | starts from | recipe and its keys | runs | {costs} |"
    yield "|---|---|---|---|---|---|---|"
    total = 0.0
    for name, model in paper.models.items():
        if name not in models:
            continue
        methods = [
            run for run in needs if run.startswith(f"{name}/") and paper.parts(run)[1].method
        ]
        runs = sum(len(paper.places(run)) for run in methods)
        recipe = f"`{' '.join([model.recipe, *model.overrides])}`" if runs else "evaluated only"
        each = " | | "
        if runs and paper.gpu:
            planned = plan_of(model, [*paper.training_keys(model), *more], GPUS[paper.gpu])
            hours = totals(planned, planned.steps)["gpu_hours"]
            total += runs * hours
            memory = (
                f"{sum(planned.training.values()) / 1e9:.0f} of {planned.run.gpu.memory / 1e9:.0f}"
            )
            cost = f"{hours:,.1f} for {planned.steps} steps"
            each = f"{memory} GB | {planned.step_seconds:,.0f} | {cost}"
        yield f"| {name} | {model.base} | {recipe} | {runs or ''} | {each} |"
    yield "\n" + fill(f"Steps of a run: {paper.steps_from}.", 100, break_on_hyphens=False)
    if total:
        yield f"\nAll of these runs, whole: {total:,.0f} {paper.gpu} hours by `nemo-algos plan`."
    yield "\n| method | keys |\n|---|---|"
    for name, method in paper.methods.items():
        keys = " ".join(method.program or method_keys(method))
        if any(run.endswith(f"/{name}") for run in needs):
            yield f"| {name} | {f'`{keys}`' if keys else 'the model as it is'} |"
    yield "\n| evaluation | runs | config and its keys |\n|---|---|---|"
    for name, evaluation in paper.evaluations.items():
        runs = sum(len(paper.places(run)) for run in needs if name in needs[run])
        keys = " ".join([evaluation.config, *evaluation.overrides])
        if runs:
            yield f"| {name} | {runs} | `{keys}` |"
    yield ""
    for name, source in paper.data.items():
        if any(name in paper.models[model].data for model in models):
            yield listed(name, source)
    yield from ["\n| what differs | paper | here |\n|---|---|---|"] if paper.settings else []
    yield from (f"| {topic} | {theirs} | {ours} |" for topic, theirs, ours in paper.settings)
    misprints = [misprint for misprint in paper.misprints if misprint.item in items]
    yield from ["\n## Misprints\n"] if misprints else []
    yield from (listed(misprint.item, misprint.says) for misprint in misprints)


def plan_of(model: Model, keys: list[str], gpu: GPU) -> Plan:
    """What `nemo-algos plan` says of a model's recipe. Raises ValueError for an unknown model."""
    run, _ = judge(apply_overrides(read_config(find(model.recipe)), keys), shipped())
    if run.model is None:
        raise ValueError(
            f"the sizes of {model.base} are not known, so its cost cannot be planned. Name a "
            "folder with its config.json."
        )
    return plan_run(run.plain, run.model, gpu)


def listed(name: str, text: str) -> str:
    """A point of a list, of lines of 100 columns."""
    return fill(f"- **{name}**: {text}", 100, subsequent_indent="  ", break_long_words=False)


def method_keys(method: Method) -> list[str]:
    """What it sets over a recipe, as words of a command."""
    return [*(f"method.{key}={value}" for key, value in method.method.items()), *method.overrides]


# ---- how to make it


def commands(
    paper: Paper,
    items: dict[str, Item],
    runs: Path,
    keys: str = "",
    slurm: str = "",
    trained: bool = False,
) -> Iterator[str]:
    """A script for NeMo-RL's root that trains the runs, serves their checkpoints, evaluates them.

    keys: of every training, over the recipe's and the method's.
    slurm: options of `nemo-algos slurm`, which submits the training, and nothing else.
    trained: the evaluations alone.
    """
    yield SERVE
    for run, evaluations in paper.needs(items).items():
        for seed, place in enumerate(paper.places(run), 1):
            yield f"# {place}"
            folder = (runs / place).resolve()
            if paper.trains(run) and not trained:
                line = shlex.join(training(paper, run, seed, folder, bool(slurm)))
                by_hand = slurm and paper.parts(run)[1].program
                more = "".join(f" {words}" for words in (keys, slurm) if words)
                yield f"# no job of ours: {line}" if by_hand else line + more
            each = [name for name in evaluations if paper.evaluations[name].every_checkpoint]
            last = [name for name in evaluations if name not in each]
            for names in [] if slurm else filter(None, (last, each)):
                yield from evaluating(paper, run, names, place, shlex.quote(str(folder)))


def training(paper: Paper, run: str, seed: int, folder: Path, slurm: bool) -> list[str]:
    """The words that train a run into its folder."""
    model, method = paper.parts(run)
    outputs = [
        f"checkpointing.checkpoint_dir={folder}/checkpoints",
        f"logger.log_dir={folder}/logs",
    ]
    if method.program:
        return [*(word.replace("{base}", model.base) for word in method.program), *outputs]
    seeded = [f"grpo.seed={seed}"] if paper.seeds > 1 else []
    words = [model.recipe, *paper.training_keys(model), *method_keys(method), *seeded]
    if slurm:
        return ["nemo-algos", "slurm", *words, "--out", str(folder.parent), "--name", folder.name]
    embedded = load(find(model.recipe))["engine"] == "local"
    return ["nemo-algos", "train", *words, *(["--resume", str(folder)] if embedded else outputs)]


def evaluating(
    paper: Paper, run: str, evaluations: list[str], place: str, folder: str
) -> Iterator[str]:
    """The lines that evaluate a run: its last checkpoint, every one, or the model as it is.

    evaluations: all of them of every checkpoint, or none. They ask the same server.
    """
    model, method = paper.parts(run)
    trains = paper.trains(run)
    each = trains and paper.evaluations[evaluations[0]].every_checkpoint
    end = "-${step##*_}" if each else ""
    asked = []
    for name in evaluations:
        own = paper.evaluations[name]
        words = shlex.join(["nemo-algos", "eval", own.config, *own.overrides, *model.sampling])
        if at(paper.config(name, run), "model.engine") == "local":
            named = f"model.run={folder}" if trains else f"model.policy.model_name={model.base}"
            yield f"{words} {named} out={folder}/{own.folder}"
        else:
            asked.append(f"{words} model.name={place} out={folder}/{own.folder}{end}")
    if not asked:
        return
    served = shlex.join(["--served-model-name", place, *model.serve])
    if not trains:
        yield from [f"serve {shlex.quote(model.base)} {served}", *asked, STOP]
        return
    last = "" if each else " | tail -n 1"
    yield f"for step in $(ls -d {folder}/checkpoints/step_* | sort -V{last}); do"
    if model.adapter and not method.program:
        adapter = f"--lora-modules {place}=$step/policy/weights/model"
        base = shlex.quote(model.base)
        yield f"  serve {base} --enable-lora --max-lora-rank 64 {adapter}"
    else:
        weights = f"{folder}/hf/${{step##*/}}"
        paths = f"--dcp-ckpt-path $step/policy/weights --hf-ckpt-path {weights}"
        convert = f"examples/converters/convert_dcp_to_hf.py --config $step/config.yaml {paths}"
        yield f"  [ -e {weights} ] || python {convert}"
        if model.images:
            yield f"  python -c {shlex.quote(PROCESSOR)} {shlex.quote(model.base)} {weights}"
        yield f"  serve {weights} {served}"
    yield from (f"  {line}" for line in [*asked, STOP])
    yield "done"


# ---- what came out


class Value(NamedTuple):
    """Our number with its 95 % interval, where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


class Absent(Exception):
    """Why a number is not there, in a sentence."""


def table(paper: Paper, items: dict[str, Item], runs: Path) -> Iterator[str]:
    """Each item in Markdown: ours [its interval] (printed, where it lies); then what is missing."""
    from nemo_algos.lab.report.numbers import MISSING, format_number

    if runs != RUNS and not runs.is_dir():
        raise ValueError(f"--runs {runs} is not a folder. Name the parent of {paper.name}/.")
    for name, item in items.items():
        missing: dict[str, None] = {}
        yield f"## {name}: {item.title}\n"
        for block in item.blocks:
            columns = block.columns
            yield f"| {block.title} | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}"
            for row in block.rows:
                texts = []
                for cell in block.cells(row):
                    ours = over_seeds(paper, item, cell, runs, missing)
                    text = format_number(ours.value) if ours else MISSING
                    if ours and ours.low is not None:
                        text += f" [{format_number(ours.low)}, {format_number(ours.high)}]"
                    texts.append(text + beside(ours, cell.printed, cell.spread))
                yield f"| {row.label} | {' | '.join(texts)} |"
            yield ""
        if item.kind == "curves":
            yield f"Figure: {draw(paper, name, runs, missing)}\n"
        if item.kind == "report":
            places = [str(runs / place) for run in item.runs for place in paper.places(run)]
            yield f"Figure: {shlex.join(['nemo-algos', 'report', *places])}\n"
        yield from (f"The paper says: {sentence}.\n" for sentence in item.said)
        yield from (f"Misprint: {m.says}\n" for m in paper.misprints if m.item == name)
        yield from (f"Note: {note}.\n" for note in [item.note] if note)
        yield from (f"- missing: {reason}" for reason in missing)


def beside(ours: Value | None, printed: float | None, spread: float | None) -> str:
    """(0.713, within): the printed number, and where our interval lies beside it or its spread."""
    if printed is None:
        return ""
    text, width = f"{printed:g}", spread or 0.0
    if spread is not None:
        text += f" ± {spread:g}"
    if ours and ours.low is not None and ours.high is not None:
        where = "below" if ours.high < printed - width else "within"
        text += f", {'above' if ours.low > printed + width else where}"
    return f" ({text})"


def over_seeds(
    paper: Paper, item: Item, cell: Cell, runs: Path, missing: dict[str, None]
) -> Value | None:
    """Our number: of several seeds the mean with Student's interval. What lacks is noted."""
    from nemo_algos.lab.report.seeds import t_interval  # scipy

    percent = paper.unit == "percent" and IN_PERCENT.fullmatch(cell.metric)
    each = list[Value]()
    for place in paper.places(cell.run):
        try:
            own = seed_value(paper, item, cell, runs / place)
            each.append(Value(*(x and x * (100.0 if percent else 1.0) for x in own)))
        except Absent as absent:
            missing[str(absent)] = None
    if len(each) < 2:
        return each[0] if each else None
    return Value(*(float(end) for end in t_interval([one.value for one in each])))


def seed_value(paper: Paper, item: Item, cell: Cell, folder: Path) -> Value:
    """The number of one seed; a mean over benchmarks adds half-widths in squares. Raises Absent."""
    if cell.benchmarks == [TRAIN]:
        values = trained_series(paper, cell.run, cell.metric, folder)[1]
        return Value(fmean(values[-LAST_STEPS:]))
    parts = []
    for benchmark in cell.benchmarks:
        name = paper.evaluation(item, cell, benchmark)
        where = folder / paper.evaluations[name].folder
        parts.append(measured(paper, cell.run, name, where, f"{benchmark} {cell.metric}"))
    mean = fmean(part.value for part in parts)
    if any(part.low is None or part.high is None for part in parts):
        return Value(mean)
    below = sqrt(sum((part.value - (part.low or 0.0)) ** 2 for part in parts)) / len(parts)
    above = sqrt(sum(((part.high or 0.0) - part.value) ** 2 for part in parts)) / len(parts)
    return Value(mean, mean - below, mean + above)


@cache
def read_folder(folder: Path) -> Any:
    """A run, a log folder or evaluations, as `nemo-algos report` reads them. Raises Absent."""
    from nemo_algos.lab.report.runs import read_run

    if not folder.is_dir():
        raise Absent(f"no {folder}")
    try:
        return read_run(folder)
    except ValueError as error:
        raise Absent(str(error)) from None


def trained_series(paper: Paper, run: str, metric: str, folder: Path) -> Series:
    """A metric over the steps of training. Raises Absent, also where the run is another."""
    found = read_folder(folder / "logs" if (folder / "logs").is_dir() else folder)
    model, method = paper.parts(run)
    base = at(found.config, "policy.model_name") or model.base
    block = found.config.get("method") or method.method
    try:
        if block != method.method:  # the manifest may name code, a run's folder may not
            refuse_code(block, str(folder))
        same = base == model.base and build(block) == build(method.method)
    except ValueError as error:
        raise Absent(f"{folder} is not used: {error}") from None
    if not same:
        raise Absent(f"{folder} is not used: it is a run of {base} with {block}")
    for name in METRICS.get(metric, [metric]):
        if name in found.metrics:
            return found.metrics[name]
    raise Absent(f"{folder}: {metric} of training is not recorded")


def measured(paper: Paper, run: str, evaluation: str, folder: Path, column: str) -> Value:
    """BENCHMARK METRIC of an evaluation. Raises Absent, also where the evaluation is another."""
    benchmark, metric = column.split()
    found = read_folder(folder)
    if benchmark not in found.evals:
        raise Absent(f"{folder}: {benchmark} is not evaluated")
    numbers, made = found.evals[benchmark], found.manifest["eval"][benchmark]
    refuse_other(paper, run, evaluation, made, numbers, found.eval_folders[benchmark])
    if metric in numbers["scalars"]:
        return Value(*(numbers["scalars"][metric][part] for part in Value._fields))
    kind, _, k = metric.partition("@")
    curve = numbers["curves"].get(f"{kind}@k", {"k": []})
    if not k or int(k) not in curve["k"]:
        raise Absent(f"{folder}: {benchmark} has no {metric} of {numbers['samples']} samples")
    return Value(*(curve[part][curve["k"].index(int(k))] for part in Value._fields))


def refuse_other(
    paper: Paper, run: str, evaluation: str, made: Any, numbers: Any, folder: Path
) -> None:
    """Raises Absent where it records another model, sampling, size or verifier than ours."""
    wanted, benchmark = paper.config(evaluation, run), BENCHMARKS[numbers["benchmark"]]
    section = wanted["benchmarks"][benchmark.name]
    own = {**SAMPLING, **wanted.get("sampling", {})}
    facts = [(key, value, [own[key]]) for key, value in made["sampling"].items() if key in SAMPLING]
    if at(made, "model.engine") == "endpoint":
        facts.append(("model", at(made, "model.model"), paper.places(run)))
    sizes = [section["problems"]] if section.get("problems") else [*benchmark.sizes]
    left_out = sum(n for what, n in made.get("counts", {}).items() if what.endswith("left out"))
    if sizes:
        facts.append(("problems", numbers["problems"] + left_out, sizes))
    facts.append(
        ("verifier", made.get("verifier"), [section.get("verifier") or benchmark.verifier])
    )
    for what, ours, allowed in facts:
        if ours not in allowed:
            reason = f"its {what} is {ours}, not {' or '.join(map(str, allowed))}"
            raise Absent(f"{folder} is not used: {reason}")


def draw(paper: Paper, name: str, runs: Path, missing: dict[str, None]) -> str:
    """RUNS/PAPER/ITEM.png: a panel for each metric, a line for each run and seed."""
    from nemo_algos.style import COLORS, canvas

    item = paper.items[name]
    across = len(item.metrics)
    with canvas((4.5 * across, 3.5), ncols=across, squeeze=False) as (figure, axes):
        for axis, metric in zip(axes[0], item.metrics, strict=True):
            axis.set(title=metric, xlabel="step")
            for i, run in enumerate(item.runs):
                for place in paper.places(run):
                    try:
                        steps, values = series(paper, item, run, metric, runs / place)
                    except Absent as absent:
                        missing[str(absent)] = None
                        continue
                    axis.plot(steps, values, color=COLORS[i % len(COLORS)], label=place)
                    axis.legend()
        if not any(axis.lines for axis in axes[0]):
            return "nothing to draw"
        figure.savefig(runs / paper.name / f"{name}.png", dpi=140)
        return f"{runs / paper.name / name}.png"


def series(paper: Paper, item: Item, run: str, metric: str, folder: Path) -> Series:
    """A metric over the steps of training, or BENCHMARK METRIC over the evaluated checkpoints."""
    if " " not in metric:
        return trained_series(paper, run, metric, folder)
    evaluation = item.evaluations[0]
    stem = f"{paper.evaluations[evaluation].folder}-"
    ends = [path.name.removeprefix(stem) for path in folder.glob(f"{stem}*")]
    steps = sorted(int(end) for end in ends if end.isdecimal())
    if not steps:
        raise Absent(f"{folder}: no checkpoint is evaluated")
    places = [folder / f"{stem}{step}" for step in steps]
    return steps, [measured(paper, run, evaluation, place, metric).value for place in places]


def main(
    action: Annotated[str, typer.Argument(help="plan, commands or table")],
    paper: Annotated[str, typer.Argument(help=f"{', '.join(NAMES)}, or a manifest's path")],
    item: Annotated[str, typer.Argument(help="a table or figure; default: all of them")] = "",
    runs: Annotated[Path, typer.Option(help="parent of PAPER/MODEL/METHOD")] = RUNS,
    keys: Annotated[
        str, typer.Option(help="plan, commands: keys of every training, as grpo.max_num_steps=500")
    ] = "",
    model: Annotated[
        list[str] | None, typer.Option(help="another model: KEY=HUB_OR_FOLDER; repeatable")
    ] = None,
    slurm: Annotated[
        str, typer.Option(help="commands: train by `nemo-algos slurm` with these options")
    ] = "",
    trained: Annotated[
        bool, typer.Option("--trained", help="commands: the evaluations alone")
    ] = False,
) -> None:
    """Print what a paper's table needs, the commands that make it, or its numbers beside ours."""
    with exit_on_error():
        check_known("the action", action, ["plan", "commands", "table"])
        known = with_models(read(paper), model or [])
        if item:
            check_known("the item", item, known.items)
        chosen = {item: known.items[item]} if item else known.items
        lines = {
            "plan": plan(known, chosen, shlex.split(keys)),
            "commands": commands(known, chosen, runs, keys, slurm, trained),
            "table": table(known, chosen, runs),
        }
        for line in lines[action]:
            print(line)


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)
