"""What the interpolations of a config come to, within limits; what is wrong with one is a finding.

A few lines of them can take all memory.
"""

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

import omegaconf.base
from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from nemo_algos.findings import ConfigError, Finding, first_line
from nemo_algos.secrets import remember

EVALUATIONS, CHARACTERS = 10_000, 4_000_000
TOO_MUCH = (
    f"the interpolations of this config come to more than {EVALUATIONS:,} values or "
    f"{CHARACTERS:,} characters. Remove some."
)
UNSET = re.compile(r"Environment variable '(\w+)' not found")  # omegaconf's, of ${oc.env:NAME}


class Spent:
    """What the interpolations of a config have cost."""

    def __init__(self) -> None:
        self.evaluations = 0
        self.characters = 0

    def add(self, found: Any) -> Any:
        """Count what an interpolation gave, and return it.

        Raises InterpolationResolutionError beyond the limits.
        """
        plain = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
        self.evaluations += 1
        self.characters += len(str(plain))
        if self.evaluations > EVALUATIONS or self.characters > CHARACTERS:
            raise InterpolationResolutionError(TOO_MUCH)
        return found


_SPENT: ContextVar[Spent | None] = ContextVar("spent", default=None)
_LIMITED: ContextVar[bool] = ContextVar("limited", default=False)
_COUNTING = 0  # how many `limited` are open in this process
_LOCK = Lock()
_evaluate = Container._evaluate_custom_resolver
_look_up = Container._resolve_node_interpolation
_PARSERS_USER: Any = omegaconf.base
_parse = _PARSERS_USER.parse
# values are counted, then read, and NeMo-RL's configs have the same interpolations everywhere
_parse_once = functools.lru_cache(maxsize=1000)(_parse)


@contextmanager
def limited() -> Iterator[None]:
    """Within, what an interpolation comes to has a limit: in a command, and where we read a config.

    OmegaConf has no hook for it, and any access evaluates interpolations, `key in config` too. So
    its own two methods count, but only within, and not for a host's threads beside. Equal
    interpolations are parsed once.
    """
    token = _LIMITED.set(True)
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        _LIMITED.reset(token)


def _count(more: int) -> None:
    global _COUNTING
    with _LOCK:
        _COUNTING += more
        Container._evaluate_custom_resolver = _evaluate_resolver if _COUNTING else _evaluate
        Container._resolve_node_interpolation = _resolve_node if _COUNTING else _look_up
        _PARSERS_USER.parse = _parse_once if _COUNTING else _parse


@contextmanager
def bounded() -> Iterator[Spent]:
    """Within, all interpolations share one limit; else each has its own."""
    spent = _SPENT.get()
    if spent is not None:
        yield spent
        return
    spent = Spent()
    token = _SPENT.set(spent)
    try:
        with limited():
            yield spent
    finally:
        _SPENT.reset(token)


@contextmanager
def evaluating() -> Iterator[None]:
    """Within, interpolations are `bounded`, and what is wrong with one is a ConfigError.

    Where OmegaConf merges a section over an interpolation, it evaluates that, too.
    """
    try:
        with bounded():
            yield
    except OmegaConfBaseException as error:
        raise ConfigError([Finding(error.full_key or "", _interpolation_error(error))]) from None
    except RecursionError:
        raise ConfigError(
            [Finding("", "its interpolations are a chain too long to follow")]
        ) from None


def _evaluate_resolver(
    self: Container,
    key: Any,
    node: Any,
    inter_type: str,
    inter_args: tuple[Any, ...],
    inter_args_str: tuple[str, ...],
) -> Any:
    """Evaluate a resolver within the limits, and remember what ${oc.env:NAME} gave."""
    if not _LIMITED.get():
        return _evaluate(self, key, node, inter_type, inter_args, inter_args_str)
    with bounded() as spent:
        found = _evaluate(self, key, node, inter_type, inter_args, inter_args_str)
        if inter_type == "oc.env":
            remember(inter_args, found)
        return spent.add(found)


def _resolve_node(self: Container, *args: Any, **keywords: Any) -> Any:
    """Evaluate a reference to another key within the limits."""
    if not _LIMITED.get():
        return _look_up(self, *args, **keywords)
    with bounded() as spent:
        return spent.add(_look_up(self, *args, **keywords))


def refuse_too_many(written: DictConfig) -> None:
    """Raises ConfigError where a config comes to more than EVALUATIONS values."""
    if _nodes(written, {}) > EVALUATIONS:
        raise ConfigError([Finding("", TOO_MUCH)])


def _nodes(node: Any, known: dict[int, int]) -> int:
    """How many values a node comes to, a section counted wherever an interpolation puts it."""
    found = node._maybe_dereference_node() if node._is_interpolation() else node
    if not isinstance(found, Container) or found._is_none() or found._is_missing():
        return 1
    if id(found) not in known:
        content: Any = found._content
        known[id(found)] = 1
        for below in content if isinstance(content, list) else content.values():
            known[id(found)] += _nodes(below, known)
    return known[id(found)]


def _interpolation_error(error: OmegaConfBaseException) -> str:
    unset = UNSET.search(str(error))
    if unset is None:
        return first_line(error)
    return (
        f"it reads the environment variable {unset[1]}, which is not set. Export {unset[1]}=..., "
        "or set this key to a value."
    )
