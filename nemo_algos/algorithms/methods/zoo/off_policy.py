"""Methods for responses that an older or another policy sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import DriverOutput, Method, Signals, no_bounds
from nemo_algos.algorithms.methods.gpg import GPGParams
from nemo_algos.algorithms.methods.zoo.entropy import on_tokens
from nemo_algos.algorithms.record import ClipParams, OfAdvantages, Params

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts
    from nemo_algos.algorithms.shapes import Mask, PerToken


class M2POParams(Params):
    """How far the tokens that learn may be from their sampler."""

    threshold: OfAdvantages[float] = Field(default=0.04, gt=0)
    """Mean squared log-ratio of the tokens kept, nats^2 (tau_M2)."""


def m2po_advantages(rollouts: Rollouts, params: M2POParams) -> DriverOutput:
    """M2PO, second-moment trust region: stale data lose their outliers only.

        A_it = A_i for the most tokens whose mean (log pi_old - log pi_gen)^2 stays below the
               threshold, the smallest first, else 0                                     no clipping

    Why: on stale rollouts the clip cuts many tokens, and those of high entropy first, which teach
    the most. A limit on the second moment of the log-ratio bounds the variance and drops very few.

    As AReaL documents it, which chooses per micro-batch and divides by the tokens kept; here J
    divides by all. Off-policy data also wants `loss_fn.use_importance_sampling_correction`.

    Returns A_it, [B,S].
    """
    assert rollouts.gen_logprobs is not None
    squared = (rollouts.old_logprobs.double() - rollouts.gen_logprobs.double()).square()
    ranked = squared[rollouts.mask].sort().values
    if len(ranked) == 0:
        return on_tokens(rollouts.mask, rollouts, params, "m2po")
    means = ranked.cumsum(0) / ranked.new_ones(len(ranked)).cumsum(0)
    count = max(1, int((means < params.threshold).sum()))
    return on_tokens(core.tokens.largest(-squared, rollouts.mask, count), rollouts, params, "m2po")


M2PO = Method(
    name="m2po",
    paper="M2PO, arXiv 2510.01161",
    params=M2POParams,
    advantages=m2po_advantages,
    constant_bounds=no_bounds,
    per_token=frozenset({"advantages"}),
    mean="token",
    needs=frozenset({"gen_logprobs"}),
    whole_batch=True,
)


class OPSMParams(ClipParams):
    """GRPO's clip range, and how far a failure may be."""

    delta: float = Field(default=0.1, ge=0)
    """Drop failures whose mean log-ratio per token is beyond this, in nats."""


def sampler_gap(rollouts: Rollouts, params: OPSMParams) -> DriverOutput:
    """mean_t (log pi_gen - log pi_old), [B]."""
    assert rollouts.gen_logprobs is not None
    mask = rollouts.mask
    gap = core.surrogate.difference(rollouts.gen_logprobs, rollouts.old_logprobs, mask, 20.0)
    return DriverOutput(core.surrogate.sequence_mean(gap, mask)[:, 0])


def opsm_reweight(log_ratio: PerToken, mask: Mask, signals: Signals, params: OPSMParams) -> Tensor:
    """OPSM, off-policy sequence masking (DeepSeek-V3.2): far failures are left out.

        A_i = 0 where A_i < 0 and mean_t (log pi_gen - log pi_theta) > delta        then GRPO's clip

    Why: a wrong response that the policy would hardly write any more teaches it little, and its
    large log-ratios upset training. Successes, and failures near the policy, all stay.

    The paper states no delta, 0.1 is ours. TRL and ms-swift have it off, and fall back to pi_old
    where the sampler's log-probs are not known.

    Returns A'_i, [B,1].
    """
    drift = signals.extras["gap"] - core.surrogate.sequence_mean(log_ratio, mask)
    return signals.advantages.masked_fill((signals.advantages < 0) & (drift > params.delta), 0.0)


OPSM = Method(
    name="opsm",
    paper="OPSM (DeepSeek-V3.2), arXiv 2512.02556",
    params=OPSMParams,
    extras={"gap": sampler_gap},
    reweight=opsm_reweight,
    needs=frozenset({"gen_logprobs"}),
)


def log_product(log_ratio: PerToken, mask: Mask, signals: Signals, params: Params) -> Tensor:
    """log W_i = sum_t l_t, [B,1]."""
    return core.surrogate.sequence_sum(log_ratio, params.max_log_ratio)


class VESPOParams(Params):
    """k shapes phi below W = 1, lambda above it."""

    k_positive: float = Field(default=2.0, ge=0)
    """k where A >= 0."""
    lambda_positive: float = Field(default=3.0, gt=0)
    """lambda where A >= 0."""
    k_negative: float = Field(default=3.0, ge=0)
    """k where A < 0."""
    lambda_negative: float = Field(default=2.0, gt=0)
    """lambda where A < 0."""


def vespo_reweight(
    log_ratio: PerToken, mask: Mask, signals: Signals, params: VESPOParams
) -> Tensor:
    """VESPO, variational sequence-level soft policy optimization.

        J = mean sg[phi(W)] A log pi    phi = W^k exp(lambda (1 - W)), W = exp(sum_t l_t),
                                        k and lambda by the sign of A

    Why: the ratio of a whole response is the exact weight of off-policy data, and its variance
    explodes with the length. phi is 1 at W = 1 and goes to 0 for small and large W, smoothly: no
    response rules a batch, and none is cut off.

    The sum of log pi over a response is a token mean, as in TRL's code. TRL puts its correction for
    the sampler into W; here `loss_fn`'s multiplies the loss.

    Returns A'_i = phi(W_i) A_i, [B,1].
    """
    A = signals.advantages
    k = A.new_full(A.shape, params.k_negative).masked_fill(A >= 0, params.k_positive)
    decay = A.new_full(A.shape, params.lambda_negative).masked_fill(A >= 0, params.lambda_positive)
    return (k * log_ratio - decay * core.surrogate.expm1(log_ratio)).exp() * A


VESPO = Method(
    name="vespo",
    paper="VESPO, arXiv 2602.10693",
    params=VESPOParams,
    constant_bounds=no_bounds,
    log_ratio=log_product,
    reweight=vespo_reweight,
    form="logprob",
    clips=None,
    mean="token",
    needs=frozenset({"sequence_advantages"}),
)


def won(rollouts: Rollouts, params: Params) -> DriverOutput:
    """1 where the outcome is above 0, else 0, [B]."""
    return DriverOutput(core.groups.succeeded(rollouts.column(None)).double())


def topr_reweight(log_ratio: PerToken, mask: Mask, signals: Signals, params: Params) -> Tensor:
    """TOPR, tapered off-policy REINFORCE: failures fade, successes do not.

        J = mean sg[w] A log pi    w = 1 for R > 0, min(W, 1) for others, W = exp(sum_t l_t)

    Why: off-policy REINFORCE keeps pushing failures down long after they became unlikely, which
    ruins the policy. Cut at 1 their weight fades as they do; successes need none and are learnt at
    full rate.

    The sum of log pi over a response is a token mean, as in ROLL's code. The paper's T+ and T- are
    told by the reward, the weight is the group advantage, as in ROLL, whose ratio is each token's;
    the paper's, and ours, is the response's.

    Returns A'_i = w A_i, [B,1].
    """
    weight = log_ratio.clamp(max=0).exp().masked_fill(signals.extras["won"] > 0, 1.0)
    return weight * signals.advantages


TOPR = Method(
    name="topr",
    paper="TOPR, arXiv 2503.14286",
    params=Params,
    constant_bounds=no_bounds,
    extras={"won": won},
    log_ratio=log_product,
    reweight=topr_reweight,
    form="logprob",
    clips=None,
    mean="token",
    needs=frozenset({"sequence_advantages"}),
    success=frozenset({"loss"}),
)


class QuadraticParams(GPGParams):
    """The strength of the pull; no std, as gpg."""

    beta: float = Field(default=0.1, ge=0)
    """Weight of half the squared log-ratio (beta in DRO, tau in Kimi k1.5)."""

    @property
    def flat_group_is_inert(self) -> bool:
        return self.beta == 0


def dro_reweight(
    log_ratio: PerToken, mask: Mask, signals: Signals, params: QuadraticParams
) -> Tensor:
    """DRO, direct reward optimisation: a quadratic pull to pi_old and no ratio.

        J = mean A log pi - beta / 2 l^2                                     A'_it = A_i - beta l_it

    Why: offline data have no ratio worth trusting. Where A = beta l the gradient is 0: the target
    is the regularised optimum, reached from data of any policy, without importance weights or
    clips.

    The paper's policy term without its value function, and per token; verl's (no default beta) and
    ROLL's "kimi15" (0.1) are this. The gradient is the paper's; the value is the score form's.

    Returns A' = A - beta log r' of each token, [B,S], or of the response, [B,1]. Beyond
    `max_log_ratio` the pull alone is left.
    """
    within_limit = log_ratio.abs() < params.max_log_ratio
    return signals.advantages.where(within_limit, 0.0) - params.beta * log_ratio


DRO = Method(
    name="dro",
    paper="DRO, arXiv 2405.19107",
    params=QuadraticParams,
    constant_bounds=no_bounds,
    reweight=dro_reweight,
    form="logprob",
    clips=None,
    mean="token",
    flat_group_is_inert=False,
)


def kimi_log_ratio(
    log_ratio: PerToken, mask: Mask, signals: Signals, params: QuadraticParams
) -> Tensor:
    """Kimi k1.5: mirror descent, a quadratic pull of whole responses to pi_old.

        J = mean A log pi - beta / 2 L^2, L_i = sum_t l_it                 A'_i = A_i - beta L_i

    Why: each iteration aims at the best policy within a KL of the last, and L is how far a response
    has gone. As it nears that policy its own A' falls to 0, so one batch takes several updates
    without clips.

    Section 2.3's loss, whose coefficient the paper does not state; the same per token is dro.

    Returns L_i, [B,1].
    """
    return log_product(log_ratio, mask, signals, params)


KIMI = Method(
    name="kimi",
    paper="Kimi k1.5, arXiv 2501.12599",
    params=QuadraticParams,
    constant_bounds=no_bounds,
    log_ratio=kimi_log_ratio,
    reweight=dro_reweight,
    form="logprob",
    clips=None,
    mean="token",
    flat_group_is_inert=False,
    needs=frozenset({"sequence_advantages"}),
)
