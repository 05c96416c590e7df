"""The name of a run: of its config, else of its method; safe as a folder's name anywhere."""

import re
from collections.abc import Mapping
from typing import Any

UNSAFE = re.compile(r"[^\w.+=@-]+", re.ASCII)  # a colon parts the halves of a mount


def method_name(block: Any) -> str:
    """etr, mine-MINE for mine:MINE, erpo+etr for a combination; block: of a config's `method`."""
    if isinstance(block, Mapping):
        parts = [block.get(key) for key in ("advantages", "name", "bounds")]
        return "+".join(dict.fromkeys(method_name(part) for part in parts if part)) or "run"
    return UNSAFE.sub("-", str(block)).strip("-.") or "run"


def run_name(config: str, before: Any, after: Any) -> str:
    """The config's, unless its `method` (before) names others with the overrides (after)."""
    stem = UNSAFE.sub("-", config.rpartition("/")[2].removesuffix(".yaml")).strip("-.")
    name = method_name(after)
    return stem if stem and name == method_name(before) else name
