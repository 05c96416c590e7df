"""What a config names as package.module:NAME: loaded, or a finding that says what to do."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from nemo_algos.engines.rewards.function import NAMED, PAIR, RewardFunction, path_of
from nemo_algos.extras import install_of
from nemo_algos.findings import ConfigError, Finding, did_you_mean


def load_object(name: str, key: str, short: Collection[str] = ()) -> Any:
    """The object of `package.module:NAME`; short: names of ours. Raises ConfigError at the key."""
    if not all(name.partition(":")):
        hint = did_you_mean(name, sorted(short))
        raise ConfigError([Finding(key, f"must be package.module:NAME, got {name!r}{hint}")])
    try:
        return resolve_name(name)
    except Exception as error:  # whatever the module does when it is imported
        cure = ""
        if isinstance(error, ModuleNotFoundError):
            first = name.partition(":")[0].partition(".")[0]
            if Path(f"{first}.py").exists():
                cure = ". It is in this folder: put PYTHONPATH=. before the command"
            elif error.name == first:
                cure = ". Put PYTHONPATH=FOLDER, the folder that it is in, before the command"
            extra = install_of(error.name)
            if extra:
                cure = f": {extra}"
        raise ConfigError(
            [Finding(key, f"cannot import {name}: {type(error).__name__}: {error}{cure}")]
        ) from None


def findings_of(look: Callable[..., object], *args: Any) -> list[Finding]:
    try:
        look(*args)
    except ConfigError as error:
        return error.findings
    return []


def check_verifier(name: str, key: str, given: Sequence[str] = PAIR) -> None:
    """Raises ConfigError for what cannot be called with a response and an answer, or with less."""
    function = load_object(path_of(name), key, NAMED)
    try:
        RewardFunction(function, given)
    except ValueError as error:
        raise ConfigError([Finding(key, f"{name} {error}")]) from None
