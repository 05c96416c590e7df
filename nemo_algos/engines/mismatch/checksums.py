"""A number for each parameter of a sampler: those that a refit leaves out are seen by it."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

SHOWN = 3  # names


def checksums(model: nn.Module) -> dict[str, float]:
    """Of each parameter, by name: its sum, which any update moves."""
    return {name: float(_sum(parameter.detach())) for name, parameter in model.named_parameters()}


def _sum(x: Tensor) -> Tensor:
    wide = x if x.element_size() > 1 else x.float()  # FP8 has no sum
    return wide.sum(dtype=torch.float64)


def unchanged(before: Mapping[str, float], now: Mapping[str, float]) -> str:
    """A sentence on the parameters that are as before; "" without any."""
    same = [name for name, value in now.items() if before.get(name) == value]
    shown = ", ".join(same[:SHOWN]) + (", ..." if len(same) > SHOWN else "")
    text = f"{len(same)} of the sampler's {len(now)} parameters are as in the first step: {shown}"
    return text if same else ""
