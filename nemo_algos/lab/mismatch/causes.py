"""The twelve causes: what each is, how it looks, and what to do next (causes.yaml)."""

from pathlib import Path
from typing import NamedTuple

import yaml


class Cause(NamedTuple):
    """title: as a person says it; looks: in the numbers; next_step: what settles or mends it."""

    title: str
    looks: str
    next_step: str


_TEXTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
CAUSES = {name: Cause(**texts) for name, texts in _TEXTS.items()}
