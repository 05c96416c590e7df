"""ms-swift's own functions (4.6), out of the source of its wheel (sources.py).

Nothing is computed here. `_compute_fipo_influence` reads a trainer's settings: `settings` has them.
"""

from types import SimpleNamespace
from typing import Any, Optional

import torch
from sources import take
from torch import Tensor

NAMES = {"torch": torch, "Dict": dict, "List": list, "Optional": Optional, "Tuple": tuple}


def function(file: str, name: str) -> Any:
    """The function or method `name` of a file of ms-swift, by itself."""
    return take(f"swift/{file}", name, dict(NAMES))[name]


def fipo_weight(
    log_ratio: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    half_life: float = 32.0,
    high_only: bool = True,
    safety: float = 4.0,
) -> Tensor:
    """The influence weight [B, S] of loss_type=fipo with its defaults."""
    settings = SimpleNamespace(
        args=SimpleNamespace(delta=None),
        fipo_gamma=2 ** (-1 / half_life),
        fipo_clip_range=0.2,
        fipo_clip_high_only=high_only,
        fipo_safety_threshold=safety,
    )
    weigh = function("rlhf_trainers/grpo_trainer.py", "_compute_fipo_influence")
    return weigh(settings, log_ratio, log_ratio.exp(), advantages, mask)[0]


def kept_sequences(
    logprobs: Tensor, sampled: Tensor, mask: Tensor, advantages: Tensor, delta: float
) -> Tensor:
    """Bool [B]: those that the off-policy sequence mask keeps."""
    keep = function("rlhf_trainers/grpo_trainer.py", "_compute_off_policy_sequence_mask")
    settings = SimpleNamespace(off_policy_sequence_mask_delta=delta)
    return keep(settings, logprobs, sampled, mask, advantages)


def advantages(name: str, rewards: Tensor, group: list[int], scale: str) -> Tensor:
    """[B]: advantage_estimator `name`, scale_rewards `scale`."""
    compute = function("rl_core/advantage.py", "compute_advantages_dynamic")
    ids = [str(g) for g in group]
    each = [str(i) for i in range(len(ids))]
    torch.set_default_dtype(torch.float64)  # of its own temporaries
    try:
        return compute(rewards[:, None], torch.ones(1), ids, each, name, scale)[0]
    finally:
        torch.set_default_dtype(torch.float32)
