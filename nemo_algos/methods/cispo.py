"""CISPO: every token keeps its gradient, weighted by the clipped ratio: J = token mean of
sg[clip(r_it)] A_i log pi.

clip 0.2/0.2 is verl's default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_algos.methods.method import ClipParams, Method

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.methods.algorithm import Columns


def reweight(log_ratio: Tensor, columns: Columns, params: ClipParams) -> Tensor:
    """A'_it = clip(r_it, 1 - clip_low, 1 + clip_high) A_i, [B,S]."""
    clipped = log_ratio.exp().clamp(1 - columns.low, 1 + columns.high)  # pyright: ignore
    return clipped * columns.advantages


CISPO = Method(
    name="cispo",
    paper="CISPO (MiniMax-M1), arXiv 2506.13585",
    params=ClipParams,
    reweight=reweight,
    form="logprob",
    clips="weight",
    mean="token",
)
