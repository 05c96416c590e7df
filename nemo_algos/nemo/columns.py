"""A method's signals as columns of NeMo-RL's batches: what the workers read, once, and nothing
else.

float32 [B] or [B,S], the only shapes that NeMo-RL's sharding and packing carry. A number does not
travel: every worker computes it from the method's parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nemo_algos.methods.algorithm import Algorithm, Signals
from nemo_algos.rollouts import Rollouts

# Per sequence ([B], or [B,S] with equal columns), and per token ([B,S]).
PER_ROW, PER_POSITION = "nemo_algos_row_", "nemo_algos_token_"
BOTH = "bounds"  # low and high in one column


def example(algorithm: Algorithm) -> Signals:
    """The signals of two responses: which of them are numbers, and how the others are named."""
    two, zeros = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, 1)
    return algorithm.signals(Rollouts(two[:, 0].long(), zeros[:, 0], two, zeros, zeros, zeros))


def numbers(signals: Signals) -> dict[str, float]:
    """The bounds that are the same for every sequence of every batch."""
    bounds = {"low": signals.low, "high": signals.high}
    return {k: v for k, v in bounds.items() if not isinstance(v, Tensor)}


def of(signals: Signals, algorithm: Algorithm) -> dict[str, Tensor]:
    """The columns, float32 [B] or [B,S], by key.

    Raises ValueError where a bound is a number, and not the one that the workers have.
    """
    if numbers(signals) != numbers(example(algorithm)):
        raise ValueError(
            f"the clip bounds of {algorithm.bounds.name} are numbers that depend on the batch "
            f"({numbers(signals)}), which workers do not see: return them as tensors [B]"
        )
    bounds = {"low": signals.low, "high": signals.high}
    if signals.low is signals.high:
        bounds = {BOTH: signals.low}
    tensors = {k: v for k, v in (bounds | signals.read()).items() if isinstance(v, Tensor)}
    return {
        (PER_POSITION if v.dim() == 2 else PER_ROW) + k: v.float().contiguous()
        for k, v in tensors.items()
    }


def signals_of(
    data: Mapping[str, Any], algorithm: Algorithm, constant: dict[str, float]
) -> Signals:
    """The signals of a micro-batch, [B] or [B,S-1] (NeMo-RL's losses use [:, 1:]), of its columns
    and of the bounds that are numbers. Raises KeyError where a column is missing."""
    rows = {k.removeprefix(PER_ROW): first(v) for k, v in data.items() if k.startswith(PER_ROW)}
    positions = {
        k.removeprefix(PER_POSITION): v[:, 1:]
        for k, v in data.items()
        if k.startswith(PER_POSITION)
    }
    extras: dict[str, Any] = rows | positions
    if BOTH in extras:
        extras |= dict.fromkeys(("low", "high"), extras.pop(BOTH))
    extras |= constant
    low, high = extras.pop("low"), extras.pop("high")
    per_token = algorithm.advantages.token_advantages
    advantages = data["advantages"][:, 1:] if per_token else first(data["advantages"])
    return Signals(advantages, low, high, extras, {})


def first(x: Tensor) -> Tensor:
    """[B] of [B], or of [B,S] with equal columns."""
    return x if x.dim() == 1 else x[:, 0]
