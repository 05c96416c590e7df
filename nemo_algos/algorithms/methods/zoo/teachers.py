"""Methods in which a teacher takes the place of the reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import DriverOutput, Method, no_bounds
from nemo_algos.algorithms.record import OfAdvantages, Params, Undivided

if TYPE_CHECKING:
    from nemo_algos.algorithms.rollouts import Rollouts


class OPDParams(Params):
    """The teacher; there are no rewards to divide."""

    advantage_std: Undivided = "none"
    teacher: OfAdvantages[str | None] = None
    """Folder or hub name of the teacher, which the embedded engine loads as the reference."""


def opd_advantages(rollouts: Rollouts, params: OPDParams) -> DriverOutput:
    """On-policy distillation: a teacher grades every token of the student's own responses.

        J = mean r A_t, A_t = log pi_ref - log pi_old, the reference as teacher
                                                  (thinkingmachines.ai/blog/on-policy-distillation)

    Why: a reward says once per response whether it was right; a teacher says at each token whether
    it would have written it. Graded on its own responses, the student learns in states that it
    visits.

    prime-rl's loss for it takes log pi_ref - log pi_theta, drops tokens with q - p < -0.2 (p, q:
    their probability under pi_old and pi_theta) and adds 1e-3 l^2.

    Returns A_it, [B,S].
    """
    assert rollouts.ref_logprobs is not None
    mask = rollouts.mask
    gap = core.surrogate.difference(rollouts.ref_logprobs, rollouts.old_logprobs, mask, 20.0)
    tokens = max(1, int(mask.sum()))
    return DriverOutput(gap, {"opd/teacher_kl": -float(gap.double().sum()) / tokens})


OPD = Method(
    name="opd",
    paper="On-policy distillation, thinkingmachines.ai/blog",
    params=OPDParams,
    advantages=opd_advantages,
    constant_bounds=no_bounds,
    per_token=frozenset({"advantages"}),
    mean="token",
    flat_group_is_inert=False,
    needs=frozenset({"ref_logprobs", "teacher"}),
)
