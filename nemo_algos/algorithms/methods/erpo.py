"""ERPO: token advantages from an entropy gate and a process signal, normalised within each group.

    W_t    = sigmoid(gamma z(H_t))                gate, z over the group's tokens            (eq. 8)
    s_t    = beta (log pi_old - log pi_ref)                   progress                       (eq. 7)
    s~_t   = z(s_t) within (group, bucket)      bucket of the j-th token: j K // |o_i|       (eq. 9)
    psi_t  = W_t sgn(A_i) s~_t, then sigma_target psi / (std(psi) + 1e-6) over the group
    A_it   = z(A_i + eta psi_t) over the group's tokens                                     (eq. 10)

Then GRPO's clipped surrogate with the token mean. beta cancels in the z-score and only eta
sigma_target matters. eta = 0 is not GRPO: the tokens are normalised again. The z-scores inflate
noise, so old and reference log-probs must come from the same engine and precision.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import DriverOutput, Method
from nemo_algos.algorithms.record import ClipParams, OfAdvantages, Usual

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts
    from nemo_algos.algorithms.shapes import Mask

BLOCK = 2**19  # positions worked on at a time: the temporaries are small and stay in the cache
NOISE = 1e-3  # nats: below this spread of old - ref the z-scores amplify rounding


class ERPOParams(ClipParams):
    """The paper states no K, no sigma_target and no clip range."""

    progress_scale: OfAdvantages[float] = Field(default=0.1, gt=0)
    """beta_progress: it cancels in the z-score."""
    gate_sharpness: OfAdvantages[float] = Field(default=5.0, ge=0)
    """gamma: how sharply the gate opens with the entropy."""
    process_weight: OfAdvantages[Annotated[float, Usual(0, 1)]] = Field(default=0.2, ge=0)
    """eta: weight of the process signal beside the outcome."""
    buckets: OfAdvantages[int] = Field(default=10, ge=1)
    """K: relative positions whose progress is compared."""
    target_std: OfAdvantages[float] = Field(default=1.0, gt=0)
    """sigma_target: deviation of the process signal."""


def advantages(rollouts: Rollouts, params: ERPOParams) -> DriverOutput:
    """A_it [B,S], 0 off the mask; of mean 0 and variance 1 over a group's tokens (eq. 16)."""
    groups = rollouts.groups
    shape = rollouts.mask.shape
    outcome = core.groups.advantages(rollouts.rewards, groups, params.advantage_std)
    outcome = outcome[:, None].to(core.surrogate.working_dtype(rollouts.old_logprobs))
    values = outcome.new_zeros(shape)
    sums = rollouts.rewards.new_zeros(shape[0], 6)
    for rows in core.tokens.blocks(groups, BLOCK // shape[1]) if shape.numel() else ():
        values[rows], sums[rows] = _whole_groups(rollouts[rows], outcome[rows], params)
    return DriverOutput(values, _metrics(*sums.sum(0).tolist()))


def _whole_groups(rollouts: Rollouts, outcome: Tensor, params: ERPOParams) -> tuple[Tensor, Tensor]:
    """A_it [B,S] and the sums [B,6] for the metrics; outcome: A_i [B,1], whose dtype all have."""
    mask = rollouts.mask
    dtype = outcome.dtype
    assert rollouts.entropy is not None and rollouts.ref_logprobs is not None
    in_group = core.tokens.Pools.of_groups(mask, rollouts.groups)
    in_bucket = core.tokens.Pools.of_buckets(mask, rollouts.groups, params.buckets)

    gate = in_group.zscore(rollouts.entropy.to(dtype).where(mask, 0.0))
    gate = gate.mul_(params.gate_sharpness).sigmoid_()
    gap = rollouts.old_logprobs.to(dtype) - rollouts.ref_logprobs.to(dtype)
    gap = gap.where(mask, 0.0)  # nats
    psi = in_bucket.zscore(gap * params.progress_scale).mul_(gate).mul_(outcome.sign())
    scale = params.process_weight * params.target_std / (in_group.std(psi) + core.groups.EPS)
    psi.mul_(in_group.spread(scale.to(dtype)))  # eta psi
    values = in_group.zscore((psi + outcome).mul_(core.surrogate.as_number(mask)))
    return values, _sums(mask, gate, psi, gap)


def _sums(mask: Mask, gate: Tensor, psi: Tensor, gap: Tensor) -> Tensor:
    """[B,6] float64: tokens, and sums over them of the gate, open gates, |psi|, gap and gap^2."""
    import torch

    tokens = core.surrogate.token_counts(mask)
    is_open = core.surrogate.token_counts(gate > 0.5)
    gates = (gate * core.surrogate.as_number(mask)).sum(1)  # 0.5 off the mask
    gap = gap.double()
    terms = (tokens, gates, is_open, psi.abs().sum(1), gap.sum(1), gap.square().sum(1))
    return torch.stack([x.double() for x in terms], 1)


def _metrics(
    tokens: float, gates: float, is_open: float, psi: float, gap: float, gap_squared: float
) -> dict[str, float]:
    if tokens == 0:
        return {}
    spread = math.sqrt(max(0.0, gap_squared / tokens - (gap / tokens) ** 2))
    if 0 < spread < NOISE:
        warnings.warn(
            f"ERPO: log pi_old - log pi_ref varies by only {spread:.1e} nats, so its z-scores may "
            "amplify rounding. Compute both with the same engine and precision.",
            RuntimeWarning,
            stacklevel=2,
        )
    return {
        "erpo/gate": gates / tokens,
        "erpo/gate_open_share": is_open / tokens,
        "erpo/process_signal": psi / tokens,
        "erpo/progress_std": spread,
    }


ERPO = Method(
    name="erpo",
    paper="ERPO, eq. 6-10",
    params=ERPOParams,
    advantages=advantages,
    mean="token",
    per_token=frozenset({"advantages"}),
    needs=frozenset({"ref_logprobs", "entropy"}),
    usual_group=4,
)
