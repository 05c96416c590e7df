"""GDPO: each part of the reward normalised within its group, their weighted sum within the batch.

    A^k_i = (r^k_i - mean(r^k)) / (std(r^k) + epsilon)            of the group, for each part k
    S_i   = sum_k w_k A^k_i
    A_i   = (S_i - mean(S)) / (std(S) + epsilon)                  of the batch (masked rows aside)

Why: different combinations of parts often have the same sum, and the part of the largest spread
rules it. Normalised one by one, each part keeps its own distinctions and its own weight.

Parts and weights are the reward's own (`data.rewards`; of NeMo-RL its `reward/NAME`, weight 1
unless `reward_weights` says more). TRL's normalize_then_sum is epsilon 1e-4; verl takes the batch's
moments over tokens; NeMo-RL's gdpo has no epsilon there and leaves the own response out of means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import Field, FiniteFloat

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal
from nemo_algos.algorithms.record import ClipParams, OfAdvantages

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


class GDPOParams(ClipParams):
    """What is added to each deviation, and the weights."""

    epsilon: OfAdvantages[float] = Field(default=1e-6, gt=0)
    """Added to each standard deviation."""
    reward_weights: OfAdvantages[dict[str, FiniteFloat] | list[FiniteFloat]] = Field(
        default_factory=dict
    )
    """Weights of the reward parts by name, or NeMo-RL's list, one for each in alphabetical order.
    They override those of data.rewards."""


def advantages(rollouts: Rollouts, params: GDPOParams) -> Signal:
    """A_i, [B]. Raises ValueError for weights that are not those of the parts."""
    std, eps, groups = params.advantage_std, params.epsilon, rollouts.groups
    parts = rollouts.reward_parts or {}
    weights = {**(rollouts.reward_weights or {}), **_by_name(params.reward_weights, parts)}
    total = rollouts.rewards.new_zeros(len(rollouts))
    for name in weights:
        rollouts.column(name)
    for name, values in parts.items():
        total = total + weights.get(name, 1.0) * core.groups.advantages(values, groups, std, eps)
    flat = {f"gdpo/flat_{k}": float(groups.flat(v).double().mean()) for k, v in parts.items()}
    return Signal(core.batch_statistics.standardized(total, rollouts.kept, std, eps), flat)


def _by_name(
    weights: Mapping[str, float] | Sequence[float], parts: Mapping[str, Tensor]
) -> Mapping[str, float]:
    if isinstance(weights, Mapping):
        return weights
    if len(weights) != len(parts):
        raise ValueError(
            f"`method.reward_weights` has {len(weights)} weights, but the reward has {len(parts)} "
            f"parts: {', '.join(sorted(parts))}. Give one for each, in this order."
        )
    return dict(zip(sorted(parts), weights, strict=True))


GDPO = Method(
    name="gdpo",
    paper="GDPO, arXiv 2601.05242",
    params=GDPOParams,
    advantages=advantages,
    flat_group_is_inert=False,
    whole_batch=True,
    needs=frozenset({"reward_parts"}),
)
