"""Atomic checkpoints: a kill at any moment leaves the last good one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


def save(folder: Path, state: dict[str, Any], keep_last: int) -> Path:
    """Write step_N.pt: to a temporary file, flushed to disk, then renamed. Raises OSError where the
    disk is full."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{state['step']:06d}.pt"
    partial = path.with_suffix(".tmp")
    try:
        with open(partial, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as RuntimeError
        partial.unlink(missing_ok=True)
        raise OSError(
            f"cannot save {path}: {error}; the last good checkpoint is {latest(folder)}: free "
            f"disk space and resume"
        ) from None
    partial.replace(path)
    for old in sorted(folder.glob("step_*.pt"))[:-keep_last]:
        old.unlink()
    return path


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint."""
    return max(folder.glob("step_*.pt"), default=None)


def load(path: Path) -> dict[str, Any]:
    """A saved state."""
    return torch.load(path, map_location="cpu", weights_only=False)
