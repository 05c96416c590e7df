"""M2PO, second-moment trust region: stale data lose their outliers only, arXiv 2510.01161.

    A_it = A_i for the most tokens whose mean (log pi_old - log pi_gen)^2 stays below the
           threshold, the smallest first, else 0                                      no clipping

Why: on stale rollouts the clip cuts many tokens, and those of high entropy first, which teach the
most. A limit on the second moment of the log-ratio bounds the variance and drops very few.

As AReaL documents it, which chooses per micro-batch and divides by the tokens kept; here J divides
by all. Off-policy data also wants `loss_fn.use_importance_sampling_correction`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal, no_bounds
from nemo_algos.algorithms.methods.zoo.high_entropy import on_tokens
from nemo_algos.algorithms.record import OfAdvantages, Params

if TYPE_CHECKING:
    from nemo_algos.algorithms.rollouts import Rollouts


class M2POParams(Params):
    """How far the tokens that learn may be from their sampler."""

    threshold: OfAdvantages[float] = Field(default=0.04, gt=0)
    """Mean squared log-ratio of the tokens kept, nats^2 (tau_M2)."""


def advantages(rollouts: Rollouts, params: M2POParams) -> Signal:
    """A_it = A_i on the most tokens whose mean (old - gen)^2 is below the threshold, [B,S]."""
    assert rollouts.gen_logprobs is not None
    squared = (rollouts.old_logprobs.double() - rollouts.gen_logprobs.double()).square()
    ranked = squared[rollouts.mask].sort().values
    if len(ranked) == 0:
        return on_tokens(rollouts.mask, rollouts, params, "m2po")
    means = ranked.cumsum(0) / ranked.new_ones(len(ranked)).cumsum(0)
    count = max(1, int((means < params.threshold).sum()))
    return on_tokens(core.tokens.largest(-squared, rollouts.mask, count), rollouts, params, "m2po")


M2PO = Method(
    name="m2po",
    paper="M2PO, arXiv 2510.01161",
    params=M2POParams,
    advantages=advantages,
    constant_bounds=no_bounds,
    per_token=frozenset({"advantages"}),
    mean="token",
    needs=frozenset({"gen_logprobs"}),
    whole_batch=True,
)
