"""What differs between the runs' configs, library versions and git states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from nemo_algos.evals.report.numbers import MISSING
from nemo_algos.evals.report.runs import Run

RECORDED = ("config", "versions", "git", "model", "sampling", "verifier", "data")
PLACES = ("logger.log_dir",)


def differing(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """(key, value in each run) of what differs between the runs that record that part; of another
    run nothing."""
    return [row for part in RECORDED for row in _of_part(part, runs)]


def _of_part(part: str, runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    flat = [flattened(run.manifest, part) for run in runs]
    recorded = [one for one in flat if one]
    keys = sorted({key for one in recorded for key in one} - set(PLACES))
    differ = [k for k in keys if len({one.get(k, MISSING) for one in recorded}) > 1]
    return [(key, [one.get(key, MISSING) if one else "" for one in flat]) for key in differ]


def flattened(manifest: dict[str, Any], part: str) -> dict[str, str]:
    """Dotted keys to values as JSON, empty where the part is not recorded; of the config without
    `config.`."""
    out: dict[str, str] = {}
    if part in manifest:
        _flatten(manifest[part], "" if part == "config" else part, out)
    return out


def _flatten(value: Any, path: str, out: dict[str, str]) -> None:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            _flatten(inner, f"{path}.{key}".strip("."), out)
    else:
        out[path] = value if isinstance(value, str) else json.dumps(value)
