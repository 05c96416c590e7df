"""The table of benchmarks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nemo_algos.engines.data.rows import Row
from nemo_algos.engines.rewards import answers
from nemo_algos.lab.evals.benchmarks import apps, choice, code, math, sql, vision
from nemo_algos.lab.evals.benchmarks.source import Hub, Options, Puzzles
from nemo_algos.lab.evals.problem import Problem

Read = Callable[[str], tuple[list[Row], str]]
Problems = Callable[[list[Row], Options], Iterator[Problem]]
AnswerOf = Callable[[str], str | None]

MATH = "math"
CHOICE = "choice"
COUNTDOWN = "countdown"
CODE = "code"
SQL = "sql"


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
    return Benchmark(name, _puzzles, COUNTDOWN, None, 5.0, Puzzles(numbers))


def _puzzles(rows: list[Row], options: Options) -> Iterator[Problem]:
    """The prompt is the puzzle and a colon; the puzzle itself is what a solution answers."""
    return (Problem(text, f"{text} :", text) for text in (row.text("puzzle") for row in rows))


def _math(name: str, hub: Hub | None, problems: Problems = math.problems) -> Benchmark:
    return Benchmark(name, problems, MATH, answers.boxed, 5.0, hub)


def _gpqa(name: str) -> Benchmark:
    hub = Hub("Idavidrein/gpqa", "train", (name,))
    return Benchmark(name, choice.gpqa, CHOICE, answers.letter, 5.0, hub)


def _acpbench(kind: str, problems: Problems, answer_of: AnswerOf) -> Benchmark:
    tasks = ("app", "areach", "just", "land", "prog", "reach", "val")
    hub = Hub("ibm-research/acp_bench", "test", tuple(f"acp_{task}_{kind}" for task in tasks))
    files = f"*test.{kind}.json*"
    return Benchmark(f"acpbench_{kind}", problems, CHOICE, answer_of, 5.0, hub, files)


def _code(name: str, problems: Problems, seconds: float, hub: Hub) -> Benchmark:
    # besides the program's seconds: the tests' own, and the start of a program
    return Benchmark(name, problems, CODE, None, seconds + 5, hub)


def _sql(name: str, problems: Problems, seconds: float, hub: Hub) -> Benchmark:
    # the gold's query runs too, once per process
    return Benchmark(name, problems, SQL, None, 2 * seconds + 5, hub)


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
PLUS = code.PLUS_SECONDS
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
    _acpbench("bool", choice.acpbench_bool, answers.yes_no),
    _acpbench("mcq", choice.acpbench_mcq, answers.letter),
    _code("humaneval", code.humaneval, code.SECONDS, Hub("openai/openai_humaneval", "test")),
    _code("humaneval_plus", code.humaneval_plus, PLUS, Hub("evalplus/humanevalplus", "test")),
    _code("mbpp", code.mbpp, code.SECONDS, Hub("google-research-datasets/mbpp", "test", ("full",))),
    _code("mbpp_plus", code.mbpp_plus, PLUS, Hub("evalplus/mbppplus", "test")),
    Benchmark("apps", apps.apps, CODE, None, apps.SECONDS + 5, None, folders=apps.folders),
    _sql("spider", sql.spider, sql.SPIDER_SECONDS, Hub("xlangai/spider", "validation")),
    _sql("bird", sql.bird, sql.BIRD_SECONDS, Hub("birdsql/bird_sql_dev_20251106", "dev_20251106")),
    _math("geometry3k", Hub("hiyouga/geometry3k", "test"), vision.geometry3k),
)
BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}
EXTRACTORS: dict[str, AnswerOf] = {
    f"{extract.__module__}:{extract.__qualname__}": extract
    for b in _ALL
    if (extract := b.answer_of)
}
