"""Imported by transformers, for batches with an attention mask: NeMo-RL packs its own."""

from typing import Any


def pad_input(*_: Any) -> Any:
    """Not called."""
    raise NotImplementedError


def unpad_input(*_: Any) -> Any:
    """Not called."""
    raise NotImplementedError
