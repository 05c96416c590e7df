"""FIPO, future-KL influenced policy optimization: tokens weigh by what follows, arXiv 2603.19835.

    A_it = A_i clip(exp(F_t), low, high)    F_t = sum_{k >= t} gamma^(k - t) l_k,
                                            gamma = 2^(-1 / half_life)

Why: GRPO credits every token of a response alike. F_t says whether training makes the rest of the
response likelier or not, so tokens that lead where the policy is going get more of the credit.

The defaults are ms-swift's, which counts k - t in positions: here holes (a tool's output) do not
count.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms.kernel import Method, Signals
from nemo_algos.algorithms.record import ClipParams, OfBounds

if TYPE_CHECKING:
    from torch import Tensor

WINDOW = 128  # positions that one matrix of decays spans


class FIPOParams(ClipParams):
    """DAPO's clip range, the horizon, and limits of the weight."""

    clip_high: OfBounds[float] = Field(default=0.28, ge=0)
    half_life: float = Field(default=32.0, gt=0)
    """Tokens after which a log-ratio counts half."""
    low: float = Field(default=1.0, ge=0, le=1)
    """The smallest weight."""
    high: float = Field(default=1.2, ge=1)
    """The largest weight."""
    safety: float = Field(default=4.0, gt=0)
    """Ratio beyond which a token with A < 0 has its weight in [0.8, 1]."""


def reweight(log_ratio: Tensor, mask: Tensor, signals: Signals, params: FIPOParams) -> Tensor:
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


FIPO = Method(
    name="fipo",
    paper="FIPO, arXiv 2603.19835",
    params=FIPOParams,
    reweight=reweight,
    mean="token",
)
