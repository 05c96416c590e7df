"""Dropout that is left on in the trainer: no forward predicts it, but how far it moves is known."""

from typing import Any, NamedTuple

import numpy as np
import torch

from nemo_algos.lab.mismatch.network import Network, recompute
from nemo_algos.lab.mismatch.responses import Responses

Array = np.ndarray
DRAWS, ALIKE = 4, 1.5  # forwards in train mode; times: the record is as far off as one of them


class Dropout(NamedTuple):
    """rates: of the model's config; draws [DRAWS,N]: log-probs of forwards in train mode."""

    rates: dict[str, float]
    draws: Array


def dropout(network: Network, responses: Responses, record: Array) -> Dropout | None:
    """Where the record [N] differs from train mode's mean as train mode differs from itself."""
    config = network.model.config.to_dict().items()
    rates = {k: v for k, v in config if k.endswith(("dropout", "pdrop")) and v}
    if not rates:
        return None
    network.model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        draws = np.stack([recompute(network, responses).logprobs for _ in range(DRAWS)])
    network.model.eval()
    return Dropout(rates, draws) if _one_more(draws, record) else None


def _one_more(draws: Array, record: Array) -> bool:
    """Whether the record may be a further draw: on tokens that vary little, and that vary much."""
    spread: Any = draws.std(0)
    for tokens in np.array_split(np.argsort(spread), 4):
        own = np.median(np.abs(draws[0] - draws[1:].mean(0))[tokens])
        ratio = np.median(np.abs(record - draws[1:].mean(0))[tokens]) / max(own, 1e-9)
        if not 1 / ALIKE < ratio < ALIKE:
            return False
    return True
