"""Beyond the 80/20 rule: only the tokens of the highest entropy learn, arXiv 2506.01939.

    A_it = A_i where H_t >= the (1 - share) quantile of H over the batch's tokens, else 0

Why: a few tokens of high entropy are the forks that decide a solution; the others follow from
them, and their gradients mostly add noise. J divides by all tokens, chosen or not.

H is the entropy of pi_old: the paper and verl choose from the current policy within each
micro-batch, the same at the first update of a batch. This is TRL's, with DAPO's bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms.kernel import Method, Signal, group_advantages
from nemo_algos.algorithms.record import ClipParams, OfAdvantages, OfBounds, Params

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


class HighEntropyParams(ClipParams):
    """DAPO's clip range, and the share of tokens that learn."""

    clip_high: OfBounds[float] = Field(default=0.28, ge=0)
    share: OfAdvantages[float] = Field(default=0.2, gt=0, le=1)
    """Share of the batch's tokens, highest entropy first (the paper's rho)."""


def advantages(rollouts: Rollouts, params: HighEntropyParams) -> Signal:
    """A_it = A_i on the tokens of the highest entropy, else 0, [B,S]."""
    assert rollouts.entropy is not None
    values, mask = rollouts.entropy.double(), rollouts.mask
    ranked = values[mask].sort().values  # torch's quantile takes no more than 2^24
    if len(ranked) == 0:
        return on_tokens(mask, rollouts, params, "high_entropy")
    rank = (1 - params.share) * (len(ranked) - 1)
    low, high = ranked[int(rank)], ranked[min(int(rank) + 1, len(ranked) - 1)]
    return on_tokens(mask & (values >= low.lerp(high, rank % 1)), rollouts, params, "high_entropy")


def on_tokens(chosen: Tensor, rollouts: Rollouts, params: Params, name: str) -> Signal:
    """The group advantage on the chosen tokens, else 0, [B,S]."""
    values = group_advantages(rollouts, params).value[:, None].where(chosen, 0.0)
    tokens = max(1, int(rollouts.mask.sum()))
    return Signal(values, {f"{name}/chosen_share": int(chosen.sum()) / tokens})


HIGH_ENTROPY = Method(
    name="high_entropy",
    paper="Beyond the 80/20 rule, arXiv 2506.01939",
    params=HighEntropyParams,
    advantages=advantages,
    per_token=frozenset({"advantages"}),
    mean="token",
    needs=frozenset({"entropy"}),
    whole_batch=True,
)
