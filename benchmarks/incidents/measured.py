"""What was measured of an incident: a state, and in a few words what was said of it."""

from __future__ import annotations

from typing import NamedTuple


class Measured(NamedTuple):
    """whole | part | missed, and what was said."""

    state: str
    said: str


def missing(says: list[str], text: str) -> list[str]:
    """The words that the text does not have."""
    return [word for word in says if word.lower() not in text.lower()]
