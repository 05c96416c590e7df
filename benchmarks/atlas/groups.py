"""Every group that a policy can sample, with its probability; or many, drawn in strata."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Batches(NamedTuple):
    """M batches of P prompts' groups.

    answers [M,P,G]; weight [M], of sum 1; stratum [M]: -1 where all batches are there, else the
    number of right answers of the first prompt.
    """

    answers: Tensor
    weight: Tensor
    stratum: Tensor


def every(p: Tensor, size: int) -> Batches:
    """All multisets of `size` answers of probabilities p [L] above 0, with their own."""
    there = p.nonzero()[:, 0].tolist()
    chosen = torch.tensor([*itertools.combinations_with_replacement(there, size)])
    counts = torch.nn.functional.one_hot(chosen, len(p)).sum(1).double()
    log_weight = math.lgamma(size + 1) + (torch.xlogy(counts, p) - torch.lgamma(counts + 1)).sum(1)
    return Batches(chosen[:, None], log_weight.exp(), torch.full((len(chosen),), -1))


def number(p: Tensor, size: int) -> int:
    """How many `every` gives."""
    return math.comb(int((p > 0).sum()) + size - 1, size)


def drawn(p: Tensor, right: Tensor, size: int, draws: int, seed: int) -> Batches:
    """About so many groups, a share of them for each number of right answers that can be.

    The number's own probability is exact. Seldom numbers get more draws than they are due.
    """
    rng, parts, strata, weights = np.random.default_rng(seed), [], [], []
    rate = float(p[right].sum())
    due = [math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(size + 1)]
    due = [x if x > 1e-12 else 0.0 for x in due]
    for k, share in enumerate(due):
        if n := math.ceil(draws * math.sqrt(share) / sum(map(math.sqrt, due))):
            of_right, of_wrong = (
                _pick(rng, p, kind, (n, m)) for kind, m in ((right, k), (~right, size - k))
            )
            parts.append(np.concatenate([of_right, of_wrong], 1))
            strata += [k] * n
            weights += [share / n] * n
    answers = torch.from_numpy(np.concatenate(parts))[:, None]
    return Batches(answers, torch.tensor(weights, dtype=torch.float64), torch.tensor(strata))


def at_random(p: Tensor, batches: int, size: int, seed: int) -> Tensor:
    """Independent answers of probabilities p [P,L], [batches,P,size]."""
    rng, everything = np.random.default_rng(seed), torch.ones(p.shape[1], dtype=torch.bool)
    picked = [_pick(rng, own, everything, (batches, 1, size)) for own in p]
    return torch.from_numpy(np.concatenate([np.zeros((batches, 0, size), int), *picked], 1))


def _pick(rng: np.random.Generator, p: Tensor, kind: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Answers of this kind (bool [L]), by their probabilities."""
    if not kind.any() or 0 in shape:
        return np.zeros(shape, dtype=np.int64)
    chances = p[kind].numpy()
    found = np.searchsorted(np.cumsum(chances / chances.sum())[:-1], rng.random(shape), "right")
    return kind.nonzero()[:, 0].numpy()[found]
