"""The config of an evaluation. Loads no torch."""

import json
import os
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, field_validator, model_validator

from nemo_algos.config import find, load
from nemo_algos.engines.data.prompts import TrainedPrompt
from nemo_algos.engines.local import manifest
from nemo_algos.engines.local.schema import LocalConfig, PolicySection
from nemo_algos.findings import (
    ConfigError,
    Finding,
    Section,
    at,
    did_you_mean,
    refuse_first,
    validate,
)
from nemo_algos.lab.evals.benchmarks import BENCHMARKS

URL = re.compile(r"https?://([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?(/\S*)?")
KEY_GOES = "Put a key into the environment variable of `model.api_key_env`."
# keys of a request, and what decides them
DECIDED = {
    "model": "model.name",
    **dict.fromkeys(("messages", "prompt"), "the benchmark"),
    **dict.fromkeys(("n", "best_of"), "`sampling.samples`, as a request is for one response"),
    **dict.fromkeys(("stream", "stream_options"), "answers are never streamed"),
    "echo": "responses never include the prompt",
    "seed": "sampling.seed",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "max_tokens": "sampling.max_tokens",
    "logprobs": "sampling.logprobs",
    **dict.fromkeys(("api_key", "Authorization", "authorization"), KEY_GOES),
    **dict.fromkeys(("headers", "extra_headers"), KEY_GOES),
}
Similarity = Literal["tfidf", "rouge_l", "jaccard", "edit", "embedding"]
Threshold = Annotated[float, Field(gt=0, le=1)]
MOST_RESAMPLES = 100_000  # of 500 problems they take 400 MB
# bytes of one name in a path, and of a path, on Linux
LONGEST_PART = 255
LONGEST = 4095


def _can_be_opened(path: str) -> str:
    parts = (len(part.encode(errors="replace")) for part in path.split("/"))
    if max(parts) > LONGEST_PART or len(path.encode(errors="replace")) > LONGEST:
        raise ValueError(
            f"{path[:40]!r}... is too long for a path: a name in it may have {LONGEST_PART} bytes, "
            f"the whole {LONGEST}. Shorten it."
        )
    return path


PathText = Annotated[str, AfterValidator(_can_be_opened)]


class LocalModel(Section):
    """The embedded engine: the policy of a training run, or any causal LM."""

    engine: Literal["local"] = "local"
    run: PathText | None = None
    """Folder of a training run."""
    step: int | None = Field(default=None, ge=0)
    """Step of the checkpoint. 0: the policy before training; null: the newest."""
    policy: PolicySection | None = None
    """A model without a run."""
    threads: int | None = Field(default=None, gt=0)
    """CPU threads. Default: as in training."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.run is None) == (self.policy is None):
            raise ValueError("set either `model.run` (a run folder) or `model.policy` (a model)")
        if self.step is not None and self.run is None:
            raise ValueError("`model.step` names a checkpoint of a run. Set `model.run`.")
        if self.policy:
            _can_be_opened(self.policy.model_name)
        return self

    @cached_property
    def trained(self) -> LocalConfig:
        """The training run's config. Raises ValueError where the folder holds none."""
        path = Path(self.run or "") / "manifest.json"
        if not path.is_file():
            raise ValueError(
                f"model.run: {self.run} is not a training run: it has no manifest.json. Name one, "
                "such as runs/etr/exp_001."
            )
        return validate(LocalConfig, manifest.read(path), "model.run: its config")

    @property
    def prompt(self) -> TrainedPrompt | None:
        """How it was asked in training; None where that had no prompts of rows."""
        if self.policy:
            return TrainedPrompt.read(Path(self.policy.model_name))
        data = self.trained.data
        return data.trained if data.task == "math" else None


class EndpointModel(Section):
    """An OpenAI-compatible server, such as vLLM's."""

    engine: Literal["endpoint"]
    url: str = "http://localhost:8000/v1"
    """It ends in /v1."""
    name: str
    """The model, as the server names it."""
    system: str = ""
    """A message before the problem."""
    completions: str = ""
    """Template with {prompt} that is sent to /completions instead of a chat, for base models."""
    extra: dict[str, Any] = Field(default={})
    """More keys for every request, such as top_k, stop or chat_template_kwargs."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that has the API key."""
    concurrency: int = Field(default=32, gt=0)
    timeout: float = Field(default=600.0, gt=0)
    """Seconds for a whole answer."""
    retries: int = Field(default=5, ge=0)

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        if re.search("[?#@]", url):  # it is not shown: it may hold a password
            raise ValueError(f"must not contain a user, a password, ? or #. {KEY_GOES}")
        if not URL.fullmatch(url):
            raise ValueError(f"must be a URL, such as http://localhost:8000/v1, got {url}")
        return url

    @field_validator("api_key_env")
    @classmethod
    def _is_a_variable(cls, name: str) -> str:
        if not name.isidentifier():  # nor is this: it may be the key itself
            raise ValueError("must be the name of an environment variable, not the key itself")
        if name != cls.model_fields["api_key_env"].default and name not in os.environ:
            raise ValueError("no environment variable of that name is set. Export it.")
        return name

    @field_validator("completions", mode="before")
    @classmethod
    def _is_a_template(cls, template: Any) -> Any:
        if template == {"prompt": None}:  # {prompt} without quotes is YAML's {prompt: null}
            return "{prompt}"
        if isinstance(template, (dict, list)):
            raise ValueError("it must be quoted for YAML too: 'model.completions=\"{prompt}\"'")
        if isinstance(template, str) and template and "{prompt}" not in template:
            raise ValueError("the template must contain `{prompt}`")
        return template

    @field_validator("extra")
    @classmethod
    def _is_not_decided_elsewhere(cls, extra: dict[str, Any]) -> dict[str, Any]:
        decided = []
        for key in extra:
            if key in DECIDED:
                decided.append(f"{key} ({DECIDED[key]})")
        if decided:
            raise ValueError(f"must not contain what other keys decide: {', '.join(decided)}")
        try:
            json.dumps(extra, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"it must be JSON: {error}") from None
        return extra


class NemoRLFile(Section):
    """What NeMo-RL's own evaluation saved, golds included. The verifier is the benchmark's."""

    engine: Literal["nemo_rl"]
    file: PathText
    """The eval.save_path of NeMo-RL's examples/run_eval.py, or the file in it."""


class BenchmarkSection(Section):
    """One benchmark."""

    data: PathText = "hub"
    """`hub`, or a file."""
    problems: int | None = Field(default=None, gt=0)
    """Use only the first N problems."""
    seed: int = 0
    """Seed of the options' order (GPQA)."""
    databases: PathText = ""
    """The folder of SQLite files (Spider, BIRD)."""
    prompt: Literal["trained", "benchmark"] = "trained"
    """`benchmark`: use the benchmark's prompt. By default a model trained here on rows gets
    mathematical problems as in training.
    """
    verifier: PathText | None = None
    """Verifier to use instead of the benchmark's."""


class Perturbation(Section):
    """One token of each response is replaced, and what follows is sampled anew."""

    tokens: Literal["high_entropy", "low_entropy", "any"]
    """Tokens to choose from; one of them is replaced."""
    share: float = Field(default=0.05, gt=0, le=1)
    """Share of a response's tokens to choose from."""


class SamplingSection(Section):
    """How responses are sampled."""

    samples: int = Field(default=16, gt=0)
    """Responses to each problem."""
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int | None = Field(default=None, gt=0)
    """Longest response in tokens; null: the run's or the server's limit."""
    seed: int = Field(default=0, ge=0)
    logprobs: bool = False
    """Ask an endpoint for every token's log-prob, and store it."""
    perturbation: Perturbation | None = None
    """Replace one token of each response (embedded engine only)."""


class Judge(EndpointModel):
    """The server that rates how diverse the right responses to a problem are."""

    engine: Literal["endpoint"] = "endpoint"


class Measure(Section):
    """Which metrics are computed, and how."""

    ucc_similarity: Similarity = "tfidf"
    """The similarity that decides whether two right responses are one solution."""
    ucc_threshold: Threshold = 0.8
    """From this similarity on they are one. QUATRO does not state its own: compare UCC only at
    equal settings.
    """
    thresholds: list[Threshold] = Field(default=[0.5, 0.6, 0.7, 0.8, 0.9])
    """Thresholds of the UCC curve."""
    linkage: Literal["single", "complete"] = "single"
    """How similar pairs make solutions: any pair (single) or all pairs (complete)."""
    similarities: list[Similarity] = Field(default=["tfidf", "rouge_l", "jaccard", "edit"])
    """Similarities to compute."""
    edit_unit: Literal["word", "char"] = "word"
    """Unit of the edit similarity. char is slow, so it uses edit_pairs pairs per problem."""
    edit_pairs: int = Field(default=500, gt=0)
    """Pairs per problem with edit_unit: char."""
    self_bleu: bool = True
    """Whether to compute self-BLEU."""
    embedding_model: str = ""
    """A sentence-transformers model: name or path."""
    judge: Judge | None = None
    """The server for `gpt_diversity`, which is only computed if this is set."""
    resamples: int = Field(default=2000, gt=0, le=MOST_RESAMPLES)
    """Bootstrap samples of the intervals."""
    seed: int = Field(default=0, ge=0)
    """Seed of the bootstrap."""

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        refuse_first(
            (
                self.ucc_similarity not in self.similarities,
                f"ucc_similarity={self.ucc_similarity} must be in `similarities`",
            ),
            (
                (self.ucc_similarity, self.edit_unit) == ("edit", "char"),
                "ucc_similarity=edit needs `edit_unit: word`",
            ),
            (
                ("embedding" in self.similarities) != bool(self.embedding_model),
                "embedding in `similarities` and `embedding_model` need each other",
            ),
        )
        return self


AnyModel = LocalModel | EndpointModel | NemoRLFile
ENGINES = {"local": LocalModel, "endpoint": EndpointModel, "nemo_rl": NemoRLFile}
Model = TypeVar("Model", bound=AnyModel)


class EvalConfig(Section, Generic[Model]):
    """The whole file."""

    model: Model
    benchmarks: dict[str, BenchmarkSection | None]
    """Benchmarks by name, such as {math500: {}}; null drops an inherited one."""
    sampling: SamplingSection = SamplingSection()
    metrics: Measure = Measure()
    workers: int = Field(default=1, gt=0)
    """Processes that verify and measure."""
    out: PathText | None = None
    """The folder that gets one folder per benchmark."""

    @field_validator("benchmarks")
    @classmethod
    def _known(cls, benchmarks: dict[str, Any]) -> dict[str, Any]:
        if not any(benchmarks.values()):
            raise ValueError("name at least one benchmark")
        unknown = [name for name in benchmarks if name not in BENCHMARKS]
        if unknown:
            known = sorted(BENCHMARKS)
            raise ValueError(", ".join(f"no {x}{did_you_mean(x, known)}" for x in unknown))
        return benchmarks

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        refuse_first(
            (
                isinstance(self.model, NemoRLFile) and len(self.chosen) > 1,
                "benchmarks: a NeMo-RL file contains one benchmark. Name that one only.",
            ),
            (
                isinstance(self.model, LocalModel) and not self.sampling.temperature,
                "sampling.temperature: the embedded engine cannot decode greedily. Set it above 0.",
            ),
            (
                self.sampling.logprobs and not isinstance(self.model, EndpointModel),
                "sampling.logprobs: only `model.engine: endpoint` supports it. Remove it.",
            ),
            (
                self.sampling.perturbation and not isinstance(self.model, LocalModel),
                "sampling.perturbation: a server cannot change its sampling at one token. Set "
                "`model.engine=local`.",
            ),
            (
                self.sampling.max_tokens
                and "max_completion_tokens" in getattr(self.model, "extra", {}),
                "`sampling.max_tokens` and `model.extra.max_completion_tokens` mean the same. Set "
                "one of them.",
            ),
            (
                len(self.folder.name.encode(errors="replace")) > LONGEST_PART,
                f"out: the folder {str(self.folder)[:40]}..., named after the model, is too long "
                "for a path. Set it.",
            ),
        )
        return self

    @property
    def chosen(self) -> dict[str, BenchmarkSection]:
        """The benchmarks that are not null."""
        return {name: section for name, section in self.benchmarks.items() if section}

    @property
    def trained(self) -> TrainedPrompt | None:
        """How a model of ours was asked in training."""
        if isinstance(self.model, LocalModel):
            return self.model.prompt
        return None

    @property
    def folder(self) -> Path:
        """`out`, or the model's own."""
        if self.out:
            return Path(self.out)
        match self.model:
            case LocalModel(run=str(run), step=step):
                return Path(run) / ("eval" if step is None else f"eval-step-{step}")
            case LocalModel(policy=PolicySection(model_name=name)) | EndpointModel(name=name):
                return Path("runs/eval") / _as_name(name)
        assert isinstance(self.model, NemoRLFile)
        return Path("runs/eval") / _as_name(self.model.file.removesuffix(".json"))


def parse_config(plain: dict[str, Any]) -> EvalConfig[AnyModel]:
    """The typed config. Raises ConfigError with all problems."""
    engine = at(plain, "model.engine") or "local"
    if engine not in ENGINES:
        hint = did_you_mean(str(engine), list(ENGINES))
        raise ConfigError([Finding("model.engine", f"unknown engine {engine!r}{hint}")])
    ours = {*LocalModel.model_fields} - {"engine"} if engine == "endpoint" else set[str]()
    reason = "it only applies to the embedded engine. Set `model.engine=local` too."
    wrong = []
    for key in at(plain, "model") or ():
        if key in ours:
            wrong.append(Finding(f"model.{key}", reason))
    if wrong:
        raise ConfigError(wrong)
    return validate(EvalConfig[ENGINES[engine]], _complete(plain))


def _complete(plain: dict[str, Any]) -> dict[str, Any]:
    """With math.yaml's keys, its optimizer among them, where a model without a run has none."""
    model = at(plain, "model")
    policy = at(plain, "model.policy")
    if not isinstance(policy, dict):
        return plain
    return {**plain, "model": {**model, "policy": {**load(find("math.yaml"))["policy"], **policy}}}


def _as_name(path: str) -> str:
    return path.strip("./").replace("/", "--")
