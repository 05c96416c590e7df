"""What a rule sees of a run, and what it says; tests/preflight/check/sources.txt: why."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import isqrt
from typing import Any, Protocol, TypeVar

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.config import ConfigError, Finding

error = Finding
warning = partial(Finding, severity="warning")
note = partial(Finding, severity="note")
T = TypeVar("T")
SHOWN = 3  # numbers of which a message gives the choice


def divisors(number: int) -> list[int]:
    """The divisors of a whole number, but for pairs that are both above 10000."""
    low = [d for d in range(1, min(isqrt(max(number, 0)), 10_000) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)})


def near(size: int, numbers: Iterable[int]) -> str:
    """`32, 64 or 128`: of the numbers the three that are nearest to a size."""
    *first, last = sorted(sorted(numbers, key=lambda n: abs(n - size))[:SHOWN])
    return f"{', '.join(map(str, first))} or {last}" if first else str(last)


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
