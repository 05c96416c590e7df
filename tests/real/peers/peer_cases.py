"""Batches, our losses and gradients on them, and how far peers' are from them."""

import csv
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.rollouts import Rollouts

SEEDS = range(5)


GROUP_SIZES = (4, 7, 16, 8, 13)


POSITIONS = 11


class Batch(NamedTuple):
    rollouts: Rollouts
    logprobs: Tensor


def batch(seed: int) -> Batch:
    """Unequal shuffled groups, one of them flat; a mask with holes and one empty row.

    |ref - logprobs| < 2.5 and |l| < 20, within which the peers' clamps do nothing.
    """
    random = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=random, dtype=torch.float64)
    uniform = partial(torch.rand, generator=random, dtype=torch.float64)
    size = sum(GROUP_SIZES)
    group = torch.repeat_interleave(torch.tensor(GROUP_SIZES))[
        torch.randperm(size, generator=random)
    ]
    rewards = normal(size).where(group > 1, (uniform(size) > 0.5).double())
    rewards[group == 0] = 1.0
    mask = uniform(size, POSITIONS) > 0.3
    mask[:, 3] = True
    mask[int((group == 2).nonzero()[0])] = False
    old = -3 * uniform(size, POSITIONS)
    logprobs = old + 0.3 * normal(size, 1) + 0.3 * normal(size, POSITIONS)
    ref = old + 0.1 * normal(size, POSITIONS)
    assert (ref - logprobs).abs().max() < 2.5
    entropy = 2 * uniform(size, POSITIONS)
    return Batch(Rollouts(group, rewards, mask, old, ref, entropy), logprobs)


def rows_per_response(mask: Tensor) -> float:
    """What a mean over all rows lacks for ours, which is over the rows that are not empty."""
    return len(mask) / int(mask.any(1).sum())


class Result(NamedTuple):
    loss: Tensor
    grad: Tensor


def differentiate(loss: Callable[[Tensor], Tensor], logprobs: Tensor) -> Result:
    leaf = logprobs.clone().requires_grad_()
    value = loss(leaf)
    value.backward()
    assert leaf.grad is not None
    return Result(value.detach(), leaf.grad)


def ours(
    method: dict[str, Any],
    data: Batch,
    kl_coef: float = 0.0,
    correction: dict[str, Any] | None = None,
    **kl: Any,
) -> tuple[Result, dict[str, Tensor]]:
    """Loss and gradient, and the sums of the statistics."""
    algorithm = build(method, correction)
    rollouts, _ = algorithm.correct(data.rollouts)
    signals = algorithm.signals(rollouts)
    config = LossConfig(reference_policy_kl_penalty=kl_coef, **kl)
    counts, sums = Counts.of(rollouts.mask), {}

    def loss(logprobs: Tensor) -> Tensor:
        value, stats = policy_loss(algorithm, logprobs, rollouts, signals, counts, config)
        sums.update(stats.sums)
        return value

    return differentiate(loss, data.logprobs), sums


# ---- the largest differences found, by method and what it was compared with

FIGURES: dict[tuple[str, str], list[Sequence[float | None]]] = {}


def record(method: str, against: str, loss: float | None, gradient: float) -> None:
    """Differences of one batch; loss: None where the values are not those of one function."""
    FIGURES.setdefault((method, against), []).append((loss, gradient))


def write(path: str) -> None:
    """A row each, the largest of all batches."""
    with Path(path).open("w", newline="") as file:
        line = csv.writer(file, lineterminator="\n").writerow
        line(("method", "against", "loss", "gradient"))
        for names, found in sorted(FIGURES.items()):
            line((*names, *(largest(values) for values in zip(*found, strict=True))))


def largest(values: Sequence[float | None]) -> str:
    """Rounded up to a power of ten, so that another machine's rounding is no change."""
    known = [value for value in values if value is not None]
    return f"1e{math.ceil(math.log10(max(*known, 1e-17)))}" if known else ""
