"""What the rollouts must hold for an algorithm's driver half."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from nemo_algos.algorithms.record import TOKEN_INPUTS

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.kernel import Memory
    from nemo_algos.algorithms.rollouts import Rollouts

PER_SEQUENCE = {
    "reward_parts": "name the parts of the reward, each [B]",
    "prompt": "give each sequence the number of its prompt [B], e.g. `prompt_key` of its tokens",
    "drift": "measure how far the policy has moved since the previous batch, [B]",
}


LOGPROBS = ("old_logprobs", "ref_logprobs", "gen_logprobs")
POSITIVE = (
    "{name} has {value:g} on a response token, and a logarithm of a probability is never above 0. "
    "Give log-probabilities, not probabilities or losses (negative log-likelihoods)."
)


def check(
    name: str,
    needs: Set[str],
    units: Set[str | None],
    rollouts: Rollouts,
    memory: Memory | None,
) -> None:
    """Raises ValueError where something that the driver half needs is missing or out of range.

    units: the parts of the reward that must be in [0, 1], None for the whole.
    """
    if "memory" in needs and memory is None:
        raise ValueError(
            f"{name} remembers earlier batches. Give `Algorithm.signals` the memory of the "
            "previous signals, {} at first."
        )
    for need, remedy in PER_SEQUENCE.items():
        given = getattr(rollouts, need)
        if need in needs and (given is None or (isinstance(given, dict) and not given)):
            raise ValueError(f"{name} needs {need}: {remedy}")
    for need in TOKEN_INPUTS & needs:
        value = getattr(rollouts, need)
        if value is None:
            raise ValueError(f"{name} needs {need} [B, S]. Compute it for the rollout batch.")
        if not all_finite(value + rollouts.old_logprobs, rollouts.mask):
            raise ValueError(
                f"the {need} of a response token is not finite, and {name} would spread it over "
                "the group. Look for the NaN in the model's forward pass."
            )
    for name_of in LOGPROBS:
        _check_logprobs(name_of, getattr(rollouts, name_of), rollouts)
    for column in units:
        _check_unit(name, rollouts.column(column))


def _check_unit(name: str, rewards: Tensor) -> None:
    outside = (rewards < 0) | (rewards > 1)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise ValueError(
            f"{name} needs rewards in [0, 1], but sequence {row} has {float(rewards[row]):g}. "
            "Map them, e.g. (R + 1) / 2 for rewards of -1 and 1."
        )


def _check_logprobs(name: str, values: Tensor | None, rollouts: Rollouts) -> None:
    """Raises ValueError where a finite value on the mask is more than rounding above 0."""
    if values is None:
        return
    positive = rollouts.mask & (values > rollouts.largest_logprob) & values.isfinite()
    if positive.any():
        raise ValueError(POSITIVE.format(name=name, value=float(values[positive].max())))


def all_finite(values: Tensor, mask: Tensor) -> bool:
    """Whether no value on the mask is NaN or infinite; one sum tells, unless it overflows."""
    return bool(values.where(mask, 0.0).sum().isfinite() or (values.isfinite() | ~mask).all())
