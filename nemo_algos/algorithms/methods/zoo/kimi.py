"""Kimi k1.5: mirror descent, a quadratic pull of whole responses to pi_old, arXiv 2501.12599.

    J = mean A log pi - beta / 2 L^2, L_i = sum_t l_it                     A'_i = A_i - beta L_i

Why: each iteration aims at the best policy within a KL of the last, and L is how far a response has
gone. As it nears that policy its own A' falls to 0, so one batch takes several updates without
clips.

Section 2.3's loss, whose coefficient the paper does not state; the same per token is dro.
"""

from nemo_algos.algorithms.kernel import Method, no_bounds
from nemo_algos.algorithms.methods.zoo.dro import QuadraticParams, reweight
from nemo_algos.algorithms.methods.zoo.topr import log_product

KIMI = Method(
    name="kimi",
    paper="Kimi k1.5, arXiv 2501.12599",
    params=QuadraticParams,
    constant_bounds=no_bounds,
    log_ratio=log_product,
    reweight=reweight,
    form="logprob",
    clips=None,
    mean="token",
    flat_group_is_inert=False,
    needs=frozenset({"sequence_advantages"}),
)
