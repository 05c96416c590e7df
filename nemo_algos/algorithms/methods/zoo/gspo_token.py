"""GSPO-token: GSPO's ratio as a value, each token's own gradient, arXiv 2507.18071.

    r_t = sg[s_i] pi_t / sg[pi_t], s_i = exp(mean_t l_t)

Why: GSPO's ratio is one number per response, and so is what it can credit. This one has the same
value and gradient for advantages per response, and takes advantages per token as well.

The bounds are gspo's here (0.2), not the paper's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import Method, Signals
from nemo_algos.algorithms.record import ClipParams

if TYPE_CHECKING:
    from torch import Tensor


def log_ratio(log_ratio: Tensor, mask: Tensor, signals: Signals, params: ClipParams) -> Tensor:
    """log s_i as the value, l_t's gradient, [B,S]."""
    own = log_ratio.detach()
    return (core.surrogate.sequence_mean(own, mask) + (log_ratio - own)).where(mask, 0.0)


GSPO_TOKEN = Method(
    name="gspo_token",
    paper="GSPO-token, arXiv 2507.18071",
    params=ClipParams,
    log_ratio=log_ratio,
)
