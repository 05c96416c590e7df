"""What ${oc.env:NAME} gives may be a secret: it is used, but neither shown nor stored."""

import warnings
from typing import Any

from omegaconf import OmegaConf
from omegaconf.resolvers import oc

SECRET = 8  # characters of what an environment variable holds, from which on it is not shown
_FROM_ENVIRONMENT: dict[str, str] = {}  # a value -> the ${oc.env:NAME} that gave it


def _of_environment(name: str, *default: str | None) -> str | None:
    """OmegaConf's own resolver, whose values are remembered."""
    value = oc.env(name, *default)
    if isinstance(value, str) and len(value) >= SECRET:
        _FROM_ENVIRONMENT[value] = f"${{oc.env:{','.join(map(str, (name, *default)))}}}"
    return value


with warnings.catch_warnings(action="ignore"):  # of names that are OmegaConf's own
    OmegaConf.register_new_resolver("oc.env", _of_environment, replace=True)


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
