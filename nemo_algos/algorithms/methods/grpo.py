"""GRPO: J = mean min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), A the group advantage.

clip_high = 0.28 is Clip-High (sequence mean) and, with aggregation: token, DAPO's loss.
"""

from typing import Literal

from nemo_algos.algorithms.kernel import Method
from nemo_algos.algorithms.record import ClipParams


class GRPOParams(ClipParams):
    """aggregation: sequence (GRPO's paper) | token (DAPO)."""

    aggregation: Literal["sequence", "token"] = "sequence"


GRPO = Method(name="grpo", paper="GRPO, arXiv 2402.03300", params=GRPOParams, stock=True)
