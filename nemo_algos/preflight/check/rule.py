"""What a rule sees of a run, and what it says; docs/check.md names each rule's source."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.config import ConfigError, Finding
from nemo_algos.preflight.check.layout import Run

error = Finding
warning = partial(Finding, severity="warning")
note = partial(Finding, severity="note")
T = TypeVar("T")


class AnyRun(Protocol):
    """A run of either engine: `run["grpo.max_num_steps"]`; algorithm: None where it is unknown."""

    @property
    def algorithm(self) -> Algorithm | None: ...
    def __getitem__(self, path: str) -> Any: ...


Rule = Callable[[Any], Iterator[Finding]]


class WrongKey(Exception):
    """A rule reads a key that is wrong by itself, so it has nothing to say."""


@dataclass(frozen=True)
class Preflight(Run):
    """A NeMo-RL run before it starts.

    plain: the config as it would train; written: the user's own keys; algorithm: None where
    unknown; seconds: the job's limit.
    """

    written: dict[str, Any]
    algorithm: Algorithm | None
    version: str
    seconds: int | None = None

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
        """Whether vLLM generates."""
        return self["policy.generation.backend"] == "vllm"


def asked(rules: Iterable[Rule], run: AnyRun) -> list[Finding]:
    """What the rules find that read no wrong key."""
    findings = list[Finding]()
    for rule in rules:
        try:
            findings += [*rule(run)]
        except WrongKey:
            continue
    return findings


def kept(findings: list[Finding], read: Callable[[], T]) -> T | None:
    """What is read; None where it has errors, which the findings then have too."""
    try:
        return read()
    except ConfigError as wrong:
        findings += wrong.findings
        return None
