"""Matrices of cases: `uv run pytest` takes some of each, `make test-long` the others."""

from collections.abc import Iterable
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
