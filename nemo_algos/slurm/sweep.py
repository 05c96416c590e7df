"""The points of a sweep: their overrides, and that no two write to one folder."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from nemo_algos.config import ConfigError, Finding

SHARED = {  # by two points of a sweep, and what to write instead
    "--sweep": "their values look alike in a file's name",
    "checkpointing.checkpoint_dir": "put the key that differs in it, as in /x/${grpo.seed}",
    "logger.log_dir": "put the key that differs in it, as in /x/${grpo.seed}",
}


def points(sweep: Sequence[str], overrides: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """The overrides of each run: `["a=1,2", "b=3"]` as (a=1, b=3), (a=2, b=3); one () of none.

    Raises ConfigError where a key has no value, an empty one, or is set twice."""
    split = [s.partition("=") for s in sweep]
    times = Counter(key.lstrip("+") for key, _, _ in split)
    times.update({o.partition("=")[0].lstrip("+") for o in overrides})
    wrong: list[Finding] = []
    for said, (key, _, text) in zip(sweep, split, strict=True):
        if not key or not all(_values(text)):
            wrong.append(Finding("--sweep", f"{said!r}: write it as key=a,b"))
        elif times[key.lstrip("+")] > 1:
            wrong.append(Finding("--sweep", f"{key} is set twice: write its values once, key=a,b"))
    if wrong:
        raise ConfigError(wrong)
    return list(itertools.product(*([f"{k}={v}" for v in _values(text)] for k, _, text in split)))


def _values(text: str) -> list[str]:
    """Split at the commas outside of brackets and quotes."""
    values, depth, quote = [""], 0, ""
    for letter in text:
        depth += (letter in "[{") - (letter in "]}") if not quote else 0
        if letter in "\"'":
            quote = "" if letter == quote else quote or letter
        if letter == "," and depth == 0 and not quote:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def shared(folders: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Folders that two runs would write to; folders: those of all runs, by what names them."""
    return [
        Finding(option, f"{paths.count(path)} runs share {path}: {SHARED[option]}")
        for option, paths in folders.items()
        for path in dict.fromkeys(p for p in paths if paths.count(p) > 1)
    ]
