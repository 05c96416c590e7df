"""Other weights of a token's gradient than the clipped ratio; r = pi_theta / pi_old of a token.

    sapo  J = mean f(r) A, f(r) = (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A  2511.20347
    aspo  J = mean sg[w] A log pi, w = min(1 / r, cap) for A > 0 while r <= 1 + clip_high,
          min(r, cap) for A < 0 while r >= 1 - clip_low, else 0                         2510.06062
    fipo  GRPO with A_it = A_i clip(exp(F_t), low, high),
          F_t = sum_{k >= t} gamma^(k - t) l_k, gamma = 2^(-1 / half_life)              2603.19835
    opsm  GRPO without the responses of A < 0 and mean_t (log pi_gen - log pi_theta) > delta
                                                                                        2512.02556

sapo: f(1) = 2 / tau, so `ratio/mean` is near 2; f has the slope of r at r = 1. verl's is a sequence
mean whatever its config says. aspo: the authors' code (Archer2.0) has the cap of 3 for both signs,
and clips that differ by entropy; their loss has other values and this gradient. fipo's defaults are
ms-swift's, which counts k - t in positions: here holes (a tool's output) do not count. The paper
states no delta for opsm, .1 is ours: TRL and ms-swift have it off, and fall back to pi_old where
the sampler's log-probs are not known.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signal, Signals, no_bounds
from nemo_algos.algorithms.params import ClipParams, OfBounds, Params

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts

WINDOW = 128  # positions that one matrix of fipo's decays spans


class SAPOParams(Params):
    """Temperatures of the gate by the sign of the advantage."""

    tau_positive: float = Field(default=1.0, gt=0)
    tau_negative: float = Field(default=1.05, gt=0)


class ASPOParams(ClipParams):
    """cap: of the weight, both signs."""

    cap: float = Field(default=3.0, gt=1)


class FIPOParams(ClipParams):
    """half_life: tokens; low, high: of the weight, for A < 0 beyond the ratio safety in [.8, 1]."""

    clip_high: OfBounds[float] = Field(default=0.28, ge=0)
    half_life: float = Field(default=32.0, gt=0)
    low: float = Field(default=1.0, ge=0, le=1)
    high: float = Field(default=1.2, ge=1)
    safety: float = Field(default=4.0, gt=0)


class OPSMParams(ClipParams):
    """delta: of a response's mean log-ratio, nats per token; the paper states none."""

    delta: float = Field(default=0.1, ge=0)


def sapo(log_ratio: Tensor, mask: Tensor, signals: Signals, params: SAPOParams) -> Tensor:
    """log f(r_t), [B,S]."""
    A = signals.advantages
    tau = A.new_full(A.shape, params.tau_negative).masked_fill(A > 0, params.tau_positive)
    gate = (tau * core.surrogate.expm1(log_ratio)).neg().exp().log1p().neg()
    return (gate + (4 / tau).log()).where(mask, 0.0)


def aspo(log_ratio: Tensor, mask: Tensor, signals: Signals, params: ASPOParams) -> Tensor:
    """A'_it = w_it A_i: the reciprocal ratio for A > 0, the ratio for A < 0, capped, masked."""
    A, ratio = signals.advantages, log_ratio.exp()
    flipped = log_ratio.neg().exp().where(ratio <= 1 + signals.high, 0.0)
    weight = flipped.where(A > 0, ratio.where(ratio >= 1 - signals.low, 0.0))
    return weight.clamp(max=params.cap) * A


def fipo(log_ratio: Tensor, mask: Tensor, signals: Signals, params: FIPOParams) -> Tensor:
    """A'_it = A_i clip(exp(F_t)), [B,S]."""
    weight = _future(log_ratio, mask, -math.log(2) / params.half_life).exp()
    weight = weight.clamp(params.low, params.high)
    unsafe = (signals.advantages < 0) & (log_ratio > math.log(params.safety))
    return signals.advantages * weight.clamp(0.8, 1.0).where(unsafe, weight)


def _future(values: Tensor, mask: Tensor, decay: float) -> Tensor:
    """F_t = sum_{k >= t} exp(decay n) v_k, n the mask's tokens from t to k; v is 0 off the mask."""

    def fade(tokens: Tensor) -> Tensor:
        return (tokens.to(values.dtype) * decay).exp()

    rank, out = mask.cumsum(1), values.new_zeros(values.shape)
    later, after = values.new_zeros(len(values), 1), rank[:, -1:]
    for start in reversed(range(0, values.shape[1], WINDOW)):
        here = slice(start, start + WINDOW)
        own = rank[:, here]
        decays = fade(own[:, None] - own[:, :, None]).triu()
        out[:, here] = (decays @ values[:, here, None])[..., 0] + fade(after - own) * later
        later, after = out[:, start, None], own[:, :1]
    return out


def gap(rollouts: Rollouts, params: OPSMParams) -> Signal:
    """mean_t (log pi_gen - log pi_old), [B]."""
    assert rollouts.gen_logprobs is not None
    mask = rollouts.mask
    gap = core.surrogate.difference(rollouts.gen_logprobs, rollouts.old_logprobs, mask, 20.0)
    return Signal(core.surrogate.sequence_mean(gap, mask)[:, 0])


def opsm(log_ratio: Tensor, mask: Tensor, signals: Signals, params: OPSMParams) -> Tensor:
    """A'_i = 0 where A < 0 and mean_t (log pi_gen - log pi_theta) > delta, else A_i."""
    drift = signals.extras["gap"] - core.surrogate.sequence_mean(log_ratio, mask)
    return signals.advantages.masked_fill((signals.advantages < 0) & (drift > params.delta), 0.0)


SAPO = Method(
    "sapo",
    "SAPO, arXiv 2511.20347",
    SAPOParams,
    constant_bounds=no_bounds,
    log_ratio=sapo,
    clips=None,
)
ASPO = Method(
    "aspo",
    "ASPO, arXiv 2510.06062",
    ASPOParams,
    reweight=aspo,
    form="logprob",
    clips="weight",
    mean="token",
)
FIPO = Method("fipo", "FIPO, arXiv 2603.19835", FIPOParams, reweight=fipo, mean="token")
OPSM = Method(
    "opsm",
    "OPSM (DeepSeek-V3.2), arXiv 2512.02556",
    OPSMParams,
    extras={"gap": gap},
    reweight=opsm,
    needs=frozenset({"gen_logprobs"}),
)
