"""QUATRO's figure 2: the advantage of a right response against how many of its group are right."""

from pathlib import Path

import torch

from nemo_algos.core import dual
from nemo_algos.core.groups import Groups
from nemo_algos.local.logs import drawn

DELTAS = (0.001, 0.01, 0.1)
MAX_KL_FRACTION = 0.95  # QUATRO's default


def right_advantages(size: int, delta: float) -> list[float]:
    """A of a right response (rewards 0, 1) where 1, 2, .. size - 1 of the group are right."""
    right = torch.arange(1, size)
    rewards = (torch.arange(size) < right[:, None]).double().flatten()
    groups = Groups.of(torch.arange(size - 1).repeat_interleave(size))
    radius = dual.kl_radius(rewards, groups, delta, MAX_KL_FRACTION)
    return dual.solve(rewards, groups, radius)[0][::size].tolist()


def draw(path: Path, size: int = 8) -> None:
    """A line per delta."""
    with drawn(path, (5.5, 3.4)) as (_, axis):
        for delta in DELTAS:
            axis.plot(range(1, size), right_advantages(size, delta), "o-", label=f"delta {delta}")
        axis.set(xlabel=f"right responses of {size}", ylabel="A of a right response", yscale="log")
        axis.legend()
