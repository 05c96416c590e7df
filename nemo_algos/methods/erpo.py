"""ERPO: token advantages from an entropy gate and a process signal, normalised within each group.

    W_t    = sigmoid(gamma z(H_t))                            gate, z over the group's tokens            (eq. 6)
    s_t    = beta (log pi_old - log pi_ref)                   progress                                   (eq. 7)
    s~_t   = z(s_t) within (group, bucket)                    bucket of the j-th token: j K // |o_i|     (eq. 8-9)
    psi_t  = W_t sgn(A_i) s~_t, then sigma_target psi / (std(psi) + 1e-6) over the group
    A_it   = z(A_i + eta psi_t) over the group's tokens                                                  (eq. 10)

Then GRPO's clipped surrogate with the token mean. beta cancels in the z-score and only eta sigma_target matters.
eta = 0 is not GRPO: the tokens are normalised again. The z-scores inflate noise, so old and reference log-probs must
come from the same engine and precision.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos import core
from nemo_algos.methods.method import ClipParams, Method, Part

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.rollouts import Rollouts

NOISE = 1e-3  # nats: below this spread of old - ref the z-scores amplify rounding


class ERPOParams(ClipParams):
    """beta_progress, gamma, eta, K, sigma_target of the paper; K, sigma_target and the clip are not stated there."""

    progress_scale: float = Field(default=0.1, gt=0)
    gate_sharpness: float = Field(default=5.0, ge=0)
    process_weight: float = Field(default=0.2, ge=0)
    buckets: int = Field(default=10, ge=1)
    target_std: float = Field(default=1.0, gt=0)


def advantages(rollouts: Rollouts, params: ERPOParams) -> Part:
    """A_it [B,S], 0 off the mask; each group with a signal sums to 0 with variance 1 over its tokens (eq. 16)."""
    groups, mask, lengths = rollouts.groups, rollouts.mask, rollouts.lengths
    assert rollouts.entropy is not None and rollouts.ref_logprobs is not None
    in_group = core.tokens.Pools.of_groups(lengths, groups)
    in_bucket = core.tokens.Pools.of_buckets(lengths, groups, params.buckets)

    outcome = core.groups.advantages(rollouts.rewards, groups, params.advantage_std)  # [B]
    gate = in_group.zscore(rollouts.entropy[mask]).mul_(params.gate_sharpness).sigmoid_()  # [N]
    gap = rollouts.old_logprobs[mask] - rollouts.ref_logprobs[mask]  # nats
    psi = in_bucket.zscore(gap * params.progress_scale).mul_(gate)
    psi.mul_(outcome.sign().to(psi).repeat_interleave(lengths))
    scale = params.process_weight * params.target_std / (in_group.std(psi) + core.groups.EPS)
    psi.mul_(in_group.spread(scale.to(psi)))  # eta psi
    values = in_group.zscore(psi + outcome.to(psi).repeat_interleave(lengths))
    return Part(core.tokens.unpack(values, mask), {}, _metrics(gate, psi, gap))


def _metrics(gate: Tensor, psi: Tensor, gap: Tensor) -> dict[str, float]:
    if len(gate) == 0:
        return {}
    spread = float(gap.std(correction=0))
    if 0 < spread < NOISE:
        warnings.warn(
            f"ERPO: log pi_old - log pi_ref spreads over only {spread:.1e} nats; its z-scores may amplify rounding. "
            "Compute both with the same engine and precision.",
            RuntimeWarning,
            stacklevel=2,
        )
    return {
        "erpo/gate": float(gate.mean()),
        "erpo/gate_open_share": float((gate > 0.5).float().mean()),
        "erpo/process_signal": float(psi.abs().mean()),
        "erpo/progress_std": spread,
    }


ERPO = Method(
    name="erpo",
    paper="ERPO, eq. 6-10",
    params=ERPOParams,
    advantages=advantages,
    mean="token",
    token_advantages=True,
    needs=frozenset({"ref_logprobs", "entropy"}),
)
