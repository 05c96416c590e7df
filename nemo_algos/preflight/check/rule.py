"""What a rule sees of a run of either engine, and what it says.

tests/preflight/check/sources.txt says why.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from math import isqrt
from typing import Any, Protocol, TypeVar

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.engines.local.schema import LocalConfig
from nemo_algos.engines.rewards.weighted import Reward
from nemo_algos.findings import ConfigError, Finding
from nemo_algos.preflight.check.known_models import config_of, template_of
from nemo_algos.preflight.check.layout import Run
from nemo_algos.preflight.check.release import Release
from nemo_algos.preflight.check.training_rows import datasets, last_step, validation_rows
from nemo_algos.preflight.forecast.planned import error, errors, note, warning

__all__ = ["error", "errors", "note", "warning"]  # which rules take from here
T = TypeVar("T")
SHOWN = 3  # numbers of which a message gives the choice
Rule = Callable[[Any], Iterator[Finding]]
CORRECTION = "loss_fn.use_importance_sampling_correction"


def divisors(number: int) -> list[int]:
    """The divisors of a whole number, but for pairs that are both above 10000."""
    low = []
    for d in range(1, min(isqrt(max(number, 0)), 10_000) + 1):
        if number % d == 0:
            low.append(d)
    return sorted({*low, *(number // d for d in low)})


def near(size: int, numbers: Iterable[int]) -> str:
    """`32, 64 or 128`: of the numbers the three that are nearest to a size."""
    *first, last = sorted(sorted(numbers, key=lambda n: abs(n - size))[:SHOWN])
    if first:
        return f"{', '.join(map(str, first))} or {last}"
    return str(last)


class AnyRun(Protocol):
    """A run of either engine: `run["grpo.max_num_steps"]`; algorithm: None where it is unknown."""

    @property
    def algorithm(self) -> Algorithm | None: ...
    def __getitem__(self, path: str) -> Any: ...


class WrongKey(Exception):
    """A rule reads a key that is wrong by itself, so it has nothing to say."""


def ask(rules: Iterable[Rule], run: AnyRun) -> list[Finding]:
    """What the rules find that read no wrong key."""
    findings = list[Finding]()
    for rule in rules:
        try:
            findings += [*rule(run)]
        except WrongKey:
            continue
    return findings


def keep_errors(findings: list[Finding], read: Callable[[], T]) -> T | None:
    """What is read; None where it has errors, which the findings then have too."""
    try:
        return read()
    except ConfigError as wrong:
        findings += wrong.findings
        return None


@dataclass(frozen=True)
class Preflight(Run):
    """A NeMo-RL run before it starts.

    plain: the config as it would train; written: the user's own keys; algorithm: None where
    unknown; nemo_rl: the one that trains it; seconds: the job's limit.
    """

    written: dict[str, Any]
    algorithm: Algorithm | None
    nemo_rl: Release
    seconds: int | None = None

    def or_default(self, path: str) -> Any:
        """A key's value, or where it is absent or null the default of NeMo-RL's type."""
        value = self[path]
        if value is None:
            return self.nemo_rl.schema.get(path, {}).get("default")
        return value

    @property
    def megatron(self) -> bool:
        """Else DTensor trains."""
        return self.layout.backend == "megatron"

    def size_key(self, group: str) -> str:
        """The path of a parallel group's size."""
        infix = "_model" if self.megatron and group != "context" else ""
        return f"{self.section}.{group}{infix}_parallel_size"

    @property
    def vllm(self) -> bool:
        return self["policy.generation.backend"] == "vllm"

    @property
    def known(self) -> Algorithm:
        """The method's algorithm, in rules that are asked only where it could be built."""
        assert self.algorithm
        return self.algorithm

    @property
    def last_step(self) -> int:
        """The step that ends the run, as far as its rows are known here."""
        return last_step(self)

    @property
    def held_out(self) -> int:
        """Rows of validation, 0 where they are not known here."""
        return validation_rows(self)

    @property
    def checkpoint(self) -> Mapping[str, Any]:
        """What is known of the model's config.json."""
        return config_of(str(self["policy.model_name"]))

    @property
    def own_template(self) -> str:
        """The chat template of the tokenizer, empty where it is not known here."""
        return template_of(str(self["policy.tokenizer.name"] or self["policy.model_name"]))

    @property
    def data_sets(self) -> list[tuple[str, dict[str, Any]]]:
        """Each data set's path and keys, the defaults filled in."""
        return datasets(self)

    def written_at(self, path: str, key: str) -> str:
        """The path of a data set's key, which may be among the defaults."""
        section = self[path]  # of several the keys are not told apart
        return f"{path if isinstance(section, list) or key in section else 'data.default'}.{key}"

    @property
    def corrected(self) -> bool:
        """Whether rollouts of another policy than the trained one are corrected for."""
        return bool(self[CORRECTION] or self.known.correction.active)


@dataclass(frozen=True)
class LocalRun:
    """A typed config before it starts; algorithm: None where unknown.

    wrong: keys whose values are wrong by themselves, in whose place `config` has the usual ones.
    """

    config: LocalConfig
    algorithm: Algorithm | None
    wrong: frozenset[str]

    def __getitem__(self, path: str) -> Any:
        """The value of a key, or the typed section. Raises WrongKey."""
        if any(_above(path, wrong) or _above(wrong, path) for wrong in self.wrong):
            raise WrongKey(path)
        return reduce(getattr, path.split("."), self.config)

    def changed(self, path: str) -> bool:
        """Whether a key has another value than its default."""
        section, _, key = path.rpartition(".")
        usual = type(reduce(getattr, section.split("."), self.config)).model_fields[key].default
        return self[path] != usual

    @property
    def model(self) -> str:
        return self["policy.model_name"]

    @property
    def functions(self) -> dict[str, Reward]:
        _ = self["data.rewards"], self["data.verifier"]
        return self.config.data.functions


def _above(key: str, other: str) -> bool:
    """Whether a key is the other, or a section that it is in."""
    return f"{other}.".startswith(f"{key}.")
