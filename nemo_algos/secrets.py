"""What the environment gave a config may be a secret: shown, it stands as it was written."""

import json
from collections.abc import Sequence
from typing import Any

SECRET = 8  # characters of what an environment variable holds, from which on it is not shown
_FROM_ENVIRONMENT: dict[str, str] = {}  # a value, as shown -> the ${oc.env:NAME} that gave it


def remember(arguments: Sequence[Any], value: Any) -> None:
    """Keep what ${oc.env:NAME} gave in every form in which an error or a file may show it."""
    if not isinstance(value, str):
        return
    written = f"${{oc.env:{','.join(map(str, arguments))}}}"
    for text in (value, " ".join(value.split()), *value.splitlines()):
        for shown in (text, repr(text)[1:-1], json.dumps(text)[1:-1]):
            if len(shown) >= SECRET:
                _FROM_ENVIRONMENT[shown] = written


def as_written(value: Any) -> Any:
    """`value` with ${oc.env:NAME} again where that gave a text: it may be a secret.

    To be printed, stored or sent; below SECRET characters a text stays.
    """
    if isinstance(value, dict):
        return {k: as_written(v) for k, v in value.items()}
    if isinstance(value, list):
        return [as_written(v) for v in value]
    if isinstance(value, str):
        for secret in sorted(_FROM_ENVIRONMENT, key=len, reverse=True):
            value = value.replace(secret, _FROM_ENVIRONMENT[secret])
    return value
