"""Faults of the software below a run that others have reported: the table upstream.yaml."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, TypeAdapter

from nemo_algos.findings import Finding, Section
from nemo_algos.preflight.check.rule import Preflight, note

TABLE = Path(__file__).with_name("upstream.yaml")


class Limit(Section):
    """A number above another."""

    above: float


class Reported(Section):
    """A row of the table."""

    report: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+#\d+$")]
    """owner/repository#number"""
    key: str
    when: dict[str, bool | str | Limit]
    """By key of the composed config: its value, a pattern of its text, or a limit of its number."""
    says: str
    """A sentence without its full stop: what was seen, and what to do."""
    gone: str | None
    """The release or commit that mended it."""


@cache
def reported() -> list[Reported]:
    """The rows of the table."""
    return TypeAdapter(list[Reported]).validate_python(yaml.safe_load(TABLE.read_text()))


def _holds(value: Any, wanted: bool | str | Limit) -> bool:
    if isinstance(wanted, Limit):
        return isinstance(value, (int, float)) and value > wanted.above
    if isinstance(wanted, str):
        return fnmatchcase(str(value), wanted)
    return value is wanted


def upstream_faults(run: Preflight) -> Iterator[Finding]:
    """What others have reported of such a config. A note: a run need not show it."""
    for row in reported():
        if all(_holds(run[key], wanted) for key, wanted in row.when.items()):
            mended = f", mended in {row.gone}" if row.gone else ""
            yield note(row.key, f"{row.says} ({row.report}{mended}).")
