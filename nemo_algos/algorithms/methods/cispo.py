"""CISPO: every token keeps its gradient, J = token mean of sg[clip(r_it)] A_i log pi.

clip 0.2/0.2 is verl's default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signals
from nemo_algos.algorithms.params import ClipParams

if TYPE_CHECKING:
    from torch import Tensor


def reweight(log_ratio: Tensor, mask: Tensor, signals: Signals, params: ClipParams) -> Tensor:
    """A'_it = clip(r_it, 1 - clip_low, 1 + clip_high) A_i, [B,S]."""
    clipped = core.surrogate.clamp(log_ratio.exp(), 1 - signals.low, 1 + signals.high)
    return clipped * signals.advantages


CISPO = Method(
    name="cispo",
    paper="CISPO (MiniMax-M1), arXiv 2506.13585",
    params=ClipParams,
    reweight=reweight,
    form="logprob",
    clips="weight",
    mean="token",
)
