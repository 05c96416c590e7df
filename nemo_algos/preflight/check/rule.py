"""What a rule sees of a run, and what it says; tests/preflight/check/sources.txt: why."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.config import ConfigError, Finding

error = Finding
warning = partial(Finding, severity="warning")
note = partial(Finding, severity="note")
T = TypeVar("T")


def set_divisor(most: int, *numbers: int) -> str:
    """A cure: the largest whole number up to `most` that divides them all."""
    found = next(d for d in range(max(most, 1), 0, -1) if not any(n % d for n in numbers))
    return f"Set {found}, or another divisor."


class AnyRun(Protocol):
    """A run of either engine: `run["grpo.max_num_steps"]`; algorithm: None where it is unknown."""

    @property
    def algorithm(self) -> Algorithm | None: ...
    def __getitem__(self, path: str) -> Any: ...


Rule = Callable[[Any], Iterator[Finding]]


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
