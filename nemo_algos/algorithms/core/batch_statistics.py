"""Statistics of all sequences of a batch, with the tolerances of groups."""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_algos.algorithms.core.groups import EPS, AdvantageStd


def equal(values: Tensor) -> bool:
    """Whether all values [N] are equal, as those of a flat group; none are."""
    if not len(values):
        return True
    return bool(values.max() - values.min() <= EPS * values.abs().max().clamp(min=1.0))


def standardized(values: Tensor, kept: Tensor, std: AdvantageStd, eps: float = EPS) -> Tensor:
    """(x - mean) / (std + eps) over the sequences `kept` [B], [B] -> [B].

    Exactly 0 at the mean, and everywhere where all are equal.
    """
    among = values[kept]
    if equal(among):
        return torch.zeros_like(values)
    centred = values - among.mean()
    tolerance = EPS * among.abs().max().clamp(min=1.0)
    zero = centred.abs() <= tolerance
    return (centred / deviation(values, kept, std, eps)).where(~zero, 0.0)


def deviation(values: Tensor, kept: Tensor, std: AdvantageStd, eps: float = EPS) -> Tensor:
    """std + eps over the sequences `kept` [B], a scalar; 1 for none, and where all are equal.

    Equal values have no spread to divide by: an all-wrong batch less a running baseline would be
    divided by eps.
    """
    among = values[kept]
    if std == "none" or equal(among):
        return values.new_ones(())
    centred = among - among.mean()
    dof = 1 if std == "sample" else 0
    return (centred.square().sum() / max(len(among) - dof, 1)).sqrt() + eps
