"""OPSM, off-policy sequence masking (DeepSeek-V3.2): far failures are left out, arXiv 2512.02556.

    A_i = 0 where A_i < 0 and mean_t (log pi_gen - log pi_theta) > delta         then GRPO's clip

Why: a wrong response that the policy would hardly write any more teaches it little, and its large
log-ratios upset training. Successes, and failures near the policy, all stay.

The paper states no delta, 0.1 is ours. TRL and ms-swift have it off, and fall back to pi_old where
the sampler's log-probs are not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal, Signals
from nemo_algos.algorithms.record import ClipParams

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


class OPSMParams(ClipParams):
    """GRPO's clip range, and how far a failure may be."""

    delta: float = Field(default=0.1, ge=0)
    """Drop failures whose mean log-ratio per token is beyond this, in nats."""


def gap(rollouts: Rollouts, params: OPSMParams) -> Signal:
    """mean_t (log pi_gen - log pi_old), [B]."""
    assert rollouts.gen_logprobs is not None
    mask = rollouts.mask
    gap = core.surrogate.difference(rollouts.gen_logprobs, rollouts.old_logprobs, mask, 20.0)
    return Signal(core.surrogate.sequence_mean(gap, mask)[:, 0])


def reweight(log_ratio: Tensor, mask: Tensor, signals: Signals, params: OPSMParams) -> Tensor:
    """A'_i = 0 where A < 0 and mean_t (log pi_gen - log pi_theta) > delta, else A_i."""
    drift = signals.extras["gap"] - core.surrogate.sequence_mean(log_ratio, mask)
    return signals.advantages.masked_fill((signals.advantages < 0) & (drift > params.delta), 0.0)


OPSM = Method(
    name="opsm",
    paper="OPSM (DeepSeek-V3.2), arXiv 2512.02556",
    params=OPSMParams,
    extras={"gap": gap},
    reweight=reweight,
    needs=frozenset({"gen_logprobs"}),
)
