"""Matrices of cases: `uv run pytest` takes some of each, `make test-long` the others."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def some_of(cases: Iterable[Any], kept: int) -> list[Any]:
    """The cases for parametrize; all but some `kept`, spread evenly, are marked `long`."""
    cases = list(cases)
    step = -(-len(cases) // kept)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[pytest.mark.long] if i % step else [],
        )
        for i, case in enumerate(cases)
    ]


def one_of_each(cases: Iterable[Any], kind: Callable[[Any], Any]) -> list[Any]:
    """The cases for parametrize, each one argument; all but the first of a kind are `long`."""
    seen = set[Any]()
    made = list[Any]()
    for case in cases:
        made.append(pytest.param(case, marks=[pytest.mark.long] if kind(case) in seen else []))
        seen.add(kind(case))
    return made
