"""Estimators of the KL divergence to the reference policy, per token."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from nemo_algos.algorithms.core.surrogate import difference, expm1
from nemo_algos.algorithms.shapes import Mask, PerToken

KLType = Literal["k1", "k2", "k3", "unbiased"]
MAX_KL_INPUT = 20.0


def estimate(
    logprobs: PerToken,
    ref_logprobs: PerToken,
    mask: Mask,
    kind: KLType = "k3",
    log_ratio: PerToken | None = None,
) -> Tensor:
    """[B,S] estimator of KL(pi_theta || pi_ref), with d = clamp(ref - lp, +-20).

    k1 = -d, k2 = d^2 / 2, k3 = e^d - d - 1, unbiased = r k3 (DeepSeek-V3.2, 3.1). log_ratio: log r,
    of unbiased alone, to the policy that sampled, with gradient.
    """
    d = difference(ref_logprobs, logprobs, mask, MAX_KL_INPUT)
    if kind == "k1":
        return -d
    if kind == "k2":
        return 0.5 * d.square()
    k3 = expm1(d) - d
    if kind == "k3":
        return k3
    assert log_ratio is not None
    return log_ratio.exp() * k3
