"""Statistics of groups, [B] -> [G], two-pass and vectorised over the groups, in float64.

And of all sequences of a batch, with the tolerances of groups. Rewards are those of `Rollouts`,
which keeps them in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from nemo_algos.algorithms.shapes import PerSequence

EPS = 1e-6  # added to every standard deviation
# Values that differ by less are equal: relative to the largest, absolute where all are below 1, so
# that the rounding of a sum of rewards is no signal. A choice, far above float64's rounding.
EQUAL = 1e-6
AdvantageStd = Literal["sample", "population", "none"]


@dataclass(frozen=True)
class Groups:
    """index [B]: each sequence's group, 0..G-1; count [G]: sequences per group."""

    index: Tensor
    count: Tensor

    @staticmethod
    def of(labels: Tensor) -> Groups:
        """Groups of equal labels [B] (integers, any values, any order)."""
        _, index, count = labels.unique(return_inverse=True, return_counts=True)
        return Groups(index, count)

    @cached_property
    def _zeros(self) -> Tensor:
        return torch.zeros(len(self.count), dtype=torch.float64, device=self.index.device)

    def sum(self, values: Tensor) -> Tensor:
        """[B] -> [G]."""
        return self._zeros.index_add(0, self.index, values.double())

    def mean(self, values: Tensor) -> Tensor:
        """[B] -> [G]."""
        return self.sum(values) / self.count

    def max(self, values: Tensor) -> Tensor:
        """[B] -> [G]."""
        return self._zeros.scatter_reduce(
            0, self.index, values.double(), "amax", include_self=False
        )

    def std(self, values: Tensor, dof: int = 0) -> Tensor:
        """[B] -> [G], dividing by n - dof (a group of one has 0)."""
        centred = values - self.mean(values)[self.index]
        # a group of one divides its 0 by 1, not by n - dof = 0
        return (self.sum(centred.square()) / (self.count - dof).clamp(min=1)).sqrt()

    def tolerance(self, rewards: PerSequence) -> Tensor:
        """[B] -> [G]: rewards of a group closer than this are equal."""
        return EQUAL * self.max(rewards.abs()).clamp(min=1.0)

    def flat(self, rewards: PerSequence) -> Tensor:
        """[B] -> bool [G]: groups without a signal: one sequence, or all rewards equal."""
        spread = self.max(rewards) + self.max(-rewards)
        return (self.count == 1) | (spread <= self.tolerance(rewards))


def advantages(
    rewards: PerSequence, groups: Groups, std: AdvantageStd = "sample", eps: float = EPS
) -> Tensor:
    """Group advantage A_i = (R_i - mean) / (std + eps), [B] -> [B] float64.

    std: sample (n - 1), population (n) or none (no division). Exactly 0 in flat groups and at the
    group's mean.
    """
    centred = rewards - groups.mean(rewards)[groups.index]
    at_mean = centred.abs() <= groups.tolerance(rewards)[groups.index]
    return scaled(centred.where(~at_mean, 0.0), rewards, groups, std, eps)


def scaled(
    values: Tensor, rewards: PerSequence, groups: Groups, std: AdvantageStd, eps: float = EPS
) -> Tensor:
    """values / (std + eps) of the group's rewards, [B] -> [B]; exactly 0 in flat groups."""
    if std != "none":
        scale = groups.std(rewards, dof=1 if std == "sample" else 0) + eps
        values = values / scale[groups.index]
    return values.where(~groups.flat(rewards)[groups.index], 0.0)


def tolerance(values: Tensor) -> Tensor:
    """As `Groups.tolerance` of all values, of any shape: a scalar; 0 where there are none."""
    if values.numel():
        return EQUAL * values.abs().amax().clamp(min=1.0)
    return values.new_zeros(())


def succeeded(rewards: PerSequence) -> Tensor:
    """Whether each reward is a success: above 0, and not only by the rounding of a sum."""
    return rewards > tolerance(rewards)


def all_equal(values: Tensor) -> bool:
    """Whether all values [N] are equal, as those of a flat group; true of an empty set."""
    return not len(values) or bool(values.max() - values.min() <= tolerance(values))


def standardized(values: Tensor, kept: Tensor, std: AdvantageStd, eps: float = EPS) -> Tensor:
    """(x - mean) / (std + eps) over the sequences `kept` [B], [B] -> [B].

    Exactly 0 at the mean, and everywhere where all are equal.
    """
    among = values[kept]
    if all_equal(among):
        return torch.zeros_like(values)
    centred = values - among.mean()
    zero = centred.abs() <= tolerance(among)
    return (centred / deviation(values, kept, std, eps)).where(~zero, 0.0)


def deviation(values: Tensor, kept: Tensor, std: AdvantageStd, eps: float = EPS) -> Tensor:
    """std + eps over the sequences `kept` [B], a scalar; 1 for none, and where all are equal.

    Equal values have no spread to divide by: an all-wrong batch less a running baseline would be
    divided by eps.
    """
    among = values[kept]
    if std == "none" or all_equal(among):
        return values.new_ones(())
    centred = among - among.mean()
    dof = 1 if std == "sample" else 0
    return (centred.square().sum() / max(len(among) - dof, 1)).sqrt() + eps
