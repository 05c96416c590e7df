"""Atomic checkpoints, of numbers, tensors, lists and dictionaries: no code runs at loading."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

NAME = re.compile(r"step_(\d{6,})\.pt")


def save(
    folder: Path,
    state: dict[str, Any],
    keep_top_k: int | None,
    values: Mapping[int, float] = MappingProxyType({}),
) -> Path:
    """Write step_N.pt at once: a kill at any moment leaves the last good one.

    Beside it the keep_top_k highest are kept, by the values of their steps, then by the steps.
    Raises OSError where the disk is full, ValueError for a state that could not be loaded again.
    """
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
            f"cannot save {path}: {error}. The last good checkpoint is {latest(folder)}. "
            "Free disk space, then resume."
        ) from None
    objects = get_unsafe_globals_in_checkpoint(str(partial))
    if objects:
        partial.unlink()
        raise ValueError(
            f"cannot save {path}: the optimizer or scheduler state contains {', '.join(objects)}. "
            "A checkpoint can only contain numbers and tensors. Use another optimizer or scheduler."
        )
    partial.replace(path)
    kept = ranking(folder, values)[:keep_top_k]
    for step, old in steps(folder).items():
        if step not in kept and old != path:
            old.unlink()
    return path


def ranking(folder: Path, values: Mapping[int, float]) -> list[int]:
    """The steps of the checkpoints, the best value first; of equal ones, the last."""
    return sorted(steps(folder), key=lambda s: (values.get(s, -math.inf), s), reverse=True)


def steps(folder: Path) -> dict[int, Path]:
    """The whole checkpoints by their step."""
    named = ((NAME.fullmatch(path.name), path) for path in folder.glob("step_*.pt"))
    return {int(name[1]): path for name, path in named if name}


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint."""
    return max(steps(folder).items(), default=(0, None))[1]


def load(path: Path) -> dict[str, Any]:
    """A saved state. Raises ValueError for what is none, is damaged, or holds objects."""
    damaged = _find_damage(path)
    if damaged:
        raise ValueError(
            f"{path} is damaged: the bytes of {damaged} differ from what was saved. "
            "Delete the file to resume from the previous checkpoint."
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception:  # whatever a broken, cut or empty file leads to
        raise ValueError(
            f"{path} cannot be loaded: it is damaged, or it contains objects other than numbers "
            "and tensors, which could run code. Delete it to resume from the previous checkpoint."
        ) from None
    if not isinstance(state, dict):
        raise ValueError(f"{path} cannot be loaded: it does not contain a training state")
    return state


def _find_damage(path: Path) -> str | None:
    """The first record whose bytes do not have the checksum (CRC-32) that torch.save wrote."""
    try:
        with ZipFile(path) as file:
            return file.testzip()
    except (BadZipFile, NotImplementedError):  # no archive at all: torch.load says so
        return None
