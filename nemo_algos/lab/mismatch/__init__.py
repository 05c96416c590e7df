"""From sampler and trainer log-probs of the same tokens to the cause of their difference."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_TEXTS = yaml.safe_load(Path(__file__).with_name("causes.yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Cause:
    """name: of `CAUSES`; side: sampler or trainer.

    explains: the share of that side's difference, which several causes explain together.
    """

    name: str
    side: str
    parameter: dict[str, Any]
    explains: float


class Text(NamedTuple):
    """title: as a person says it; next_step: what settles or mends it."""

    title: str
    next_step: str


CAUSES = {name: Text(**texts) for name, texts in _TEXTS.items()}
