"""Benchmarks by name: rows of a file or of the hub become problems with prompt and gold answer.

The table of all of them, with their fields, prompts and traps, is docs/benchmarks.md.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_algos.engines.data.countdown import Rules
from nemo_algos.engines.data.prompts import TrainedPrompt
from nemo_algos.engines.data.puzzles import held_out
from nemo_algos.engines.data.rows import Row, number_rows, rows_of
from nemo_algos.engines.data.rows import load as load_rows
from nemo_algos.engines.rewards import answers
from nemo_algos.findings import did_you_mean
from nemo_algos.lab.evals.benchmarks import boxed, code
from nemo_algos.lab.evals.problem import Options, Problem

PUZZLES = 256


@dataclass(frozen=True)
class Hub:
    """A data set of the hub; the rows of several configs follow one another."""

    path: str
    split: str
    configs: tuple[str | None, ...] = (None,)

    def __str__(self) -> str:
        configs = [config for config in self.configs if config]
        return f"{self.path} {self.split}" + (f" ({', '.join(configs)})" if configs else "")

    def rows(self) -> tuple[list[Row], str]:
        """The rows, and "path split fingerprint:...". Raises ValueError where there are none."""
        rows = list[Row]()
        prints = list[str]()
        for config in self.configs:
            found, fingerprint = rows_of(self.path, config, self.split)
            rows += number_rows(found, f"{self.path} {config or ''}".strip())
            prints.append(fingerprint)
        return rows, f"{self} fingerprint:{'+'.join(prints)}"


@dataclass(frozen=True)
class Puzzles:
    """Countdown puzzles that the embedded engine holds out of training, always the same ones."""

    numbers: int

    def rows(self) -> tuple[list[Row], str]:
        """Their texts, and what they are."""
        puzzles = held_out(PUZZLES, Rules(self.numbers))
        rows = []
        for i, p in enumerate(puzzles, 1):
            rows.append(Row({"puzzle": str(p)}, f"puzzle {i}"))
        return rows, f"held-out countdown puzzles of {self.numbers} numbers"


Read = Callable[[str], tuple[list[Row], str]]
Problems = Callable[[list[Row], Options], Iterator[Problem]]
AnswerOf = Callable[[str], str | None]


@dataclass(frozen=True)
class Benchmark:
    """One benchmark.

    problems: rows -> problems; raises ValueError where a row lacks a field, and counts in
    `options.counts` what it changed or left out. verifier: "module:function". answer_of: the final
    answer as written, for majority votes; None where there is none (code, SQL). deadline: seconds
    per verdict. hub: where its rows are, None where only files are read. files: pattern of its
    files in a folder. folders: reads a folder of its own kind.
    """

    name: str
    problems: Problems
    verifier: str
    answer_of: AnswerOf | None
    deadline: float
    hub: Hub | Puzzles | None
    files: str | None = None
    folders: Read | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many problems it has, before any is left out; () where any file is one."""
        return SIZES.get(self.name, ())


def _countdown(name: str, numbers: int) -> Benchmark:
    return Benchmark(name, _puzzles, "countdown", None, 5.0, Puzzles(numbers))


def _puzzles(rows: list[Row], options: Options) -> Iterator[Problem]:
    """The prompt is the puzzle and a colon; the puzzle itself is what a solution answers."""
    for row in rows:
        text = row.text("puzzle")
        yield Problem(text, f"{text} :", text)


def _math(name: str, hub: Hub | None, problems: Problems = boxed.problems) -> Benchmark:
    return Benchmark(name, problems, "math", answers.boxed, 5.0, hub)


def _gpqa(name: str) -> Benchmark:
    hub = Hub("Idavidrein/gpqa", "train", (name,))
    return Benchmark(name, boxed.gpqa, "choice", answers.letter, 5.0, hub)


def _acpbench(kind: str, problems: Problems, answer_of: AnswerOf) -> Benchmark:
    tasks = ("app", "areach", "just", "land", "prog", "reach", "val")
    hub = Hub("ibm-research/acp_bench", "test", tuple(f"acp_{task}_{kind}" for task in tasks))
    files = f"*test.{kind}.json*"
    return Benchmark(f"acpbench_{kind}", problems, "choice", answer_of, 5.0, hub, files)


def _code(name: str, problems: Problems, seconds: float, hub: Hub) -> Benchmark:
    # besides the program's seconds: the tests' own, and the start of a program
    return Benchmark(name, problems, "code", None, seconds + 5, hub)


def _sql(name: str, problems: Problems, seconds: float, hub: Hub) -> Benchmark:
    # the gold's query runs too, once per process
    return Benchmark(name, problems, "sql", None, 2 * seconds + 5, hub)


# of the hub's data sets, and where they differ of the authors' files
SIZES: dict[str, tuple[int, ...]] = {
    "countdown": (256,),
    "countdown_4": (256,),
    "math500": (500,),
    "amc23": (40,),
    "aime24": (30,),
    "aime25": (30,),
    "minerva_math": (272,),
    "olympiadbench": (674, 675),
    "gsm8k": (1319,),
    "gpqa_main": (448,),
    "gpqa_diamond": (198,),
    "geometry3k": (601,),
    "acpbench_bool": (900,),
    "acpbench_mcq": (900,),
    "humaneval": (164,),
    "humaneval_plus": (164,),
    "mbpp": (500,),
    "mbpp_plus": (378,),
    "spider": (1034,),
    "bird": (1534,),
}
_ALL = (
    _countdown("countdown", 3),
    _countdown("countdown_4", 4),
    _math("math", None),  # any file of one's own
    _math("math500", Hub("HuggingFaceH4/MATH-500", "test")),
    _math("amc23", Hub("math-ai/amc23", "test")),
    _math("aime24", Hub("HuggingFaceH4/aime_2024", "train")),
    _math("aime25", Hub("math-ai/aime25", "test")),
    _math("minerva_math", Hub("math-ai/minervamath", "test")),
    _math("olympiadbench", Hub("Hothan/OlympiadBench", "train", ("OE_TO_maths_en_COMP",))),
    _math("gsm8k", Hub("openai/gsm8k", "test", ("main",))),
    _gpqa("gpqa_main"),
    _gpqa("gpqa_diamond"),
    _acpbench("bool", boxed.acpbench_bool, answers.yes_no),
    _acpbench("mcq", boxed.acpbench_mcq, answers.letter),
    _code("humaneval", code.humaneval, code.SECONDS, Hub("openai/openai_humaneval", "test")),
    _code(
        "humaneval_plus",
        code.humaneval_plus,
        code.PLUS_SECONDS,
        Hub("evalplus/humanevalplus", "test"),
    ),
    _code("mbpp", code.mbpp, code.SECONDS, Hub("google-research-datasets/mbpp", "test", ("full",))),
    _code("mbpp_plus", code.mbpp_plus, code.PLUS_SECONDS, Hub("evalplus/mbppplus", "test")),
    Benchmark("apps", code.apps, "code", None, code.APPS_SECONDS + 5, None, folders=code.folders),
    _sql("spider", code.spider, code.SPIDER_SECONDS, Hub("xlangai/spider", "validation")),
    _sql(
        "bird", code.bird, code.BIRD_SECONDS, Hub("birdsql/bird_sql_dev_20251106", "dev_20251106")
    ),
    _math("geometry3k", Hub("hiyouga/geometry3k", "test"), boxed.geometry3k),
)
BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}


def _extractors() -> dict[str, AnswerOf]:
    """What reads a response's answer, by the name that a manifest records."""
    found = {}
    for benchmark in _ALL:
        extract = benchmark.answer_of
        if extract:
            found[f"{extract.__module__}:{extract.__qualname__}"] = extract
    return found


EXTRACTORS = _extractors()


@dataclass(frozen=True)
class Loaded:
    """A benchmark's problems, ids unique.

    counts: of all rows, also with a limit: what was changed, left out or is not scored as its
    authors do. source: the file and its SHA-256, or the data set and its fingerprint.
    """

    benchmark: Benchmark
    problems: list[Problem]
    counts: Counter[str]
    source: str


def load(
    name: str,
    data: str = "hub",
    *,
    seed: int = 0,
    databases: str = "",
    limit: int | None = None,
    trained: TrainedPrompt | None = None,
) -> Loaded:
    """The problems of the benchmark `name`, the first `limit` of them.

    data: "hub", a file, or for ACPBench and APPS a folder. seed: of the order of GPQA's options.
    databases: folder of the SQLite files of Spider and BIRD. trained: see Options.
    Raises ValueError: an unknown name, data that cannot be read, a row without its fields, an id
    twice, a limit below 1.
    """
    if name not in BENCHMARKS:
        raise ValueError(f"unknown benchmark {name!r}{did_you_mean(name, sorted(BENCHMARKS))}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    benchmark = BENCHMARKS[name]
    path = Path(data)
    if benchmark.folders and path.is_dir():
        rows, source = benchmark.folders(data)
    elif data != "hub":
        rows, source = load_rows(data, benchmark.files)
    elif benchmark.hub:
        rows, source = benchmark.hub.rows()
    else:
        raise ValueError(f"{name} reads your own file. Set data to its path.")
    folder = path if path.is_dir() else path.parent
    options = Options(seed, folder, databases, trained=trained)
    problems = list(benchmark.problems(rows, options))
    if not problems:
        raise ValueError(f"{source}: none of its {len(rows)} rows belongs to {name}")
    ids = Counter(problem.id for problem in problems)
    twice = [name for name, number in ids.items() if number > 1]
    if twice:
        raise ValueError(
            f"ids must be unique, but {len(twice)} occur more than once, such as {twice[0]!r}"
        )
    texts = {(p.prompt, p.images, str(p.before)) for p in problems}
    options.counts["problems with the prompt of another"] += len(problems) - len(texts)
    return Loaded(benchmark, problems[:limit], +options.counts, source)
