"""What a report and a rerun need to find in stored files, which may come from anyone.

P problems, n responses to each. Integers end where NumPy's and JavaScript's do.
"""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, FiniteFloat, model_validator

from nemo_algos.engines.rewards.pool import Status
from nemo_algos.jsonl import JsonObject, Step
from nemo_algos.lab.evals.schema import MOST_RESAMPLES, Similarity

LARGEST = 1e9  # of a reward; a mean of larger ones may be no number
Count = Annotated[int, Field(ge=0, le=2**53)]
Positive = Annotated[int, Field(ge=1, le=2**53)]
# It goes into names of files.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
Number = Annotated[str, AfterValidator(float)]  # the key of an object


class ProblemLine(JsonObject):
    """A line of problems.jsonl."""

    id: str
    prompt: str
    answer: str
    info: dict[str, str] = Field(default={})


class GenerationLine(JsonObject):
    """A line of generations.jsonl."""

    problem: str
    sample: Count
    response: str
    tokens: Annotated[int, Field(ge=-1, le=2**53)]
    finish: str
    key: str
    logprobs: list[FiniteFloat] | None = None


class VerdictLine(JsonObject):
    """A line of verdicts.jsonl."""

    problem: str
    sample: Count
    reward: Annotated[float, Field(gt=-LARGEST, lt=LARGEST)]
    status: Status
    detail: str
    of: str


class JudgementLine(JsonObject):
    """A line of judgements.jsonl."""

    problem: str
    answer: str
    of: str


class Sampling(JsonObject):
    samples: Positive


class EvalManifest(JsonObject):
    """manifest.json of an evaluation. answers: "module:function" of the extractor."""

    model: Any
    benchmark: Name
    sampling: Sampling
    verifier: str
    answers: str = ""


class Interval(JsonObject):
    """A mean with the ends of its interval."""

    value: FiniteFloat
    low: FiniteFloat | None
    high: FiniteFloat | None


class Curve(JsonObject):
    """Intervals over k, each list as long as k."""

    k: Annotated[list[Positive], Field(min_length=1)]
    value: list[FiniteFloat]
    low: list[FiniteFloat | None]
    high: list[FiniteFloat | None]

    @model_validator(mode="after")
    def _alike_long(self) -> Self:
        if {len(self.value), len(self.low), len(self.high)} != {len(self.k)}:
            raise ValueError("its lists must be as long as k")
        return self


class Histogram(JsonObject):
    """Pairs by their similarity; edges: one more than bins."""

    edges: list[FiniteFloat]
    all: list[Count]
    correct: list[Count]

    @model_validator(mode="after")
    def _alike_long(self) -> Self:
        if not len(self.edges) - 1 == len(self.all) == len(self.correct) > 0:
            raise ValueError("the numbers of its bins and edges do not match")
        return self


class PerProblem(JsonObject):
    """[P] each."""

    mean: list[FiniteFloat]
    clusters: list[Count]


class Settings(JsonObject):
    ucc_similarity: Similarity
    ucc_threshold: FiniteFloat
    linkage: str
    embedding_model: str
    resamples: Annotated[int, Field(gt=0, le=MOST_RESAMPLES)]
    seed: Count


class Measured(JsonObject):
    """metrics.json, what `measure` returns."""

    benchmark: Name
    problems: Count
    samples: Positive
    ids: Annotated[list[str], Field(min_length=1)]
    correct: list[Count]
    statuses: dict[str, Count]
    scalars: dict[str, Interval]
    curves: dict[str, Curve]
    ucc_by_threshold: dict[Number, Curve] = Field(default={})
    histograms: dict[str, Histogram] = Field(default={})
    per_problem: PerProblem
    excluded: dict[str, Count] = Field(default={})
    settings: Settings

    @model_validator(mode="after")
    def _of_one_evaluation(self) -> Self:
        if "mean" not in self.scalars or "pass@k" not in self.curves:
            raise ValueError("it must have a mean and pass@k")
        columns = self.correct, self.per_problem.mean, self.per_problem.clusters
        if {len(column) for column in columns} | {len(set(self.ids))} != {len(self.ids)}:
            raise ValueError("its lists must have one number for each of ids")
        if max(self.correct) > self.samples or max(self.curves["pass@k"].k) > self.samples:
            raise ValueError("it counts more responses than samples")
        return self


class TraceLine(Step):
    """A line of trace.jsonl: a response with a number per token."""

    group: Count
    prompt: str
    tokens: list[str]
    reward: float
    cut: list[bool]
    entropy: list[float] | None
    advantage: list[float]
    ratio: list[float]
    low: list[float] | None
    high: list[float] | None

    @model_validator(mode="after")
    def _alike_long(self) -> Self:
        columns = self.cut, self.entropy, self.advantage, self.ratio, self.low, self.high
        if {len(self.tokens)} != {len(c) for c in columns if c is not None}:
            raise ValueError("it must have one number for each of tokens")
        return self


class Grpo(JsonObject):
    seed: Count | None = None


class Config(JsonObject):
    method: dict[str, Any] = Field(default={})
    grpo: Grpo = Grpo()


class RunManifest(JsonObject):
    """manifest.json of a training run."""

    config: Config = Config()


class RunSummary(JsonObject):
    """summary.json of a training run."""

    before: dict[str, float] = Field(default={})
    after: dict[str, float] = Field(default={})
