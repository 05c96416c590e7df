"""The power mean of a row, stable for every exponent from 0 (the geometric mean) upwards."""

import torch
from torch import Tensor

from nemo_algos.algorithms.core.surrogate import as_number, expm1, token_counts


def log_power_mean(
    log_values: Tensor, mask: Tensor, exponent: Tensor, least: float = 0.0
) -> Tensor:
    """log M_p(u) = log(mean_t u_t^p) / p over the masked positions of each row.

    log_values [B,S] (log u, 0 off the mask), mask [B,S], exponent [B,1] >= least >= 0 -> [B,1]; 0
    for an empty row. Centred at c = mean log u: c + log1p(mean expm1(p (log u - c))) / p. By Jensen
    the mean under log1p is never negative, so nothing cancels and p -> 0 runs into the geometric
    mean exp(c).
    """
    count = token_counts(mask).clamp(min=1)[:, None]
    centre = log_values.sum(1, keepdim=True) / count
    x = (log_values - centre).mul_(exponent)
    # In float32 on the CPU plain exp is exact enough: its rounding counts 1 / exponent times.
    plain = x.is_cpu and x.dtype == torch.float32 and least >= 1 / 16
    growth = (x.exp_().sub_(1) if plain else expm1(x)).mul_(as_number(mask))
    growth = growth.sum(1, keepdim=True) / count
    tiny = exponent < torch.finfo(log_values.dtype).tiny
    return centre + (growth.log1p() / exponent.where(~tiny, 1.0)).where(~tiny, 0.0)
