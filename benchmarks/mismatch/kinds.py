"""What a planted kind is: its truth, how the two sides differ, and what is done to the records."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rollouts import Side
from torch import Tensor
from worlds import World

CORRECT = Side()
VERSION = 4  # of the trainer's weights; the folders previous/v1 to v3 hold the earlier ones


@dataclass(frozen=True)
class Cause:
    """names: accepted ones, the planted one first; parameters: [value, tolerance], or values."""

    names: tuple[str, ...]
    sides: tuple[str, ...]
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rollout:
    """tokens [B,T] with their mask and both sides' log-probs, prompts aside."""

    prompts: list[list[int]]
    tokens: Tensor
    mask: Tensor
    sampler: Tensor
    trainer: Tensor
    entropy: Tensor
    versions: Tensor | None = None


def any_world(name: str) -> bool:
    """Everywhere."""
    return True


Records = Callable[[Rollout, World, torch.Generator], Rollout]


@dataclass(frozen=True)
class Kind:
    """A mismatch, or a clean run.

    also: verdicts accepted as a whole; subtle: at bf16's noise by nature, and yet nameable by
    the tokens drawn or the numbers' grid; worlds: where it makes sense; adapted: the run trains
    the adapter; prompts: how many of the world's sixteen; score: in place of the usual forward
    pass; left: the dump's rows must be padded on the left, as the trainer's are. Without a cause
    and with `also` unknown a fault has no name.
    """

    name: str
    causes: tuple[Cause, ...] = ()
    sampler: Side = CORRECT
    trainer: Side = CORRECT
    records: Records | None = None
    also: tuple[str, ...] = ()
    subtle: bool = False
    worlds: Callable[[str], bool] = any_world
    adapted: bool = False
    prompts: int = 6
    score: Callable[..., Any] | None = None
    left: bool = False
    thread: str = ""

    def seed(self, seed: int) -> int:
        """Of this kind's draws: independent of the others'."""
        return zlib.crc32(f"{self.name} {seed}".encode())


class Draws:
    """A seed's parameters: of each kind its own, whichever other kinds there are."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def number(self, kind: str, low: float, high: float) -> float:
        """With three digits."""
        return float(f"{self._of(kind).uniform(low, high):.3g}")

    def count(self, kind: str, low: int, high: int) -> int:
        """Both ends included."""
        return self._of(kind).randint(low, high)

    def one_of(self, kind: str, *values: Any) -> Any:
        """Any of them."""
        return self._of(kind).choice(values)

    def _of(self, kind: str) -> random.Random:
        return random.Random(f"{self.seed} {kind}")


def unclaimed(name: str, sampler: Side = CORRECT, trainer: Side = CORRECT, **more: Any) -> Kind:
    """A fault that the command does not claim to name: only `unknown` is right."""
    return Kind(f"unclaimed-{name}", (), sampler, trainer, also=("unknown",), **more)


def cause(*names: str, side: str = "sampler", **parameters: Any) -> tuple[Cause, ...]:
    """One cause; side "either" where both tell the same story."""
    sides = ("sampler", "trainer") if side == "either" else (side,)
    return (Cause(names, sides, parameters),)


def write(path: Path, rollout: Rollout, world: World, style: int) -> None:
    """As a dump. Styles 0 and 2 pad on the left, 1 and 3 on the right; 3 has no optional field."""
    rows, pad = len(rollout.tokens), world.pad
    longest = max(map(len, rollout.prompts))
    width = longest + rollout.tokens.shape[1]
    arrays = {
        "tokens": np.full((rows, width), pad),
        "mask": np.zeros((rows, width), bool),
        **{k: np.zeros((rows, width), np.float32) for k in ("sampler", "trainer", "entropy")},
    }
    for i, prompt in enumerate(rollout.prompts):
        start = longest if style % 2 == 0 else len(prompt)
        arrays["tokens"][i, start - len(prompt) : start] = prompt
        spot = slice(start, start + rollout.tokens.shape[1])
        real = rollout.mask[i].numpy()
        arrays["mask"][i, spot] = real
        for name in ("sampler", "trainer", "entropy"):
            arrays[name][i, spot] = np.where(real, getattr(rollout, name)[i].numpy(), 0)
        arrays["tokens"][i, spot] = np.where(real, rollout.tokens[i].numpy(), pad)
    more: dict[str, Any] = {"sampler_logprobs": arrays.pop("sampler")}
    more["trainer_logprobs"] = arrays.pop("trainer")
    if style == 3:
        arrays.pop("entropy")
    else:
        more["prompt_length"] = np.array([len(prompt) for prompt in rollout.prompts])
    if rollout.versions is not None:
        more |= {"weights_version": _placed(rollout.versions, arrays["mask"]), "step": VERSION}
    np.savez_compressed(path, **arrays, **more)


def _placed(versions: Tensor, mask: np.ndarray) -> np.ndarray:
    """[B] as it is; [B,T] in the rows' places."""
    if versions.ndim == 1:
        return versions.numpy()
    out = np.full(mask.shape, VERSION)
    for row, real, given in zip(out, mask, versions.numpy(), strict=True):
        row[real] = given[: real.sum()]
    return out
