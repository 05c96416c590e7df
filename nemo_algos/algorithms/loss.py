"""The loss: surrogate, off-policy weights, KL penalty, terms, and statistics of what happened.

loss = -J + kl_coef KL + terms   J = mean( w_t  min(r' A', clip(r') A') )  or  mean( w_t A' log pi )
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from nemo_algos.algorithms import core
from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions import loss_inputs, off_policy, terms
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.kernel import Method, Shaped, Signals
from nemo_algos.config import validate

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.core.metrics import Stats
    from nemo_algos.algorithms.core.surrogate import Counts
    from nemo_algos.algorithms.rollouts import Rollouts


class Loss(NamedTuple):
    """value: scalar to differentiate, this micro-batch's share of the loss; stats: additive."""

    value: Tensor
    stats: Stats


def batch_loss(
    method: Algorithm | Method | dict[str, Any] | str,
    logprobs: Tensor,
    rollouts: Rollouts,
    config: LossConfig | Mapping[str, Any] = LossConfig(),
    entropy: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a whole rollout batch, scalar, and its metrics: both halves in one call.

    method: what `build` takes, or gives; logprobs [B,S]: log pi_theta, nats, with gradient. Group
    statistics are of these rollouts: for minibatches, and for methods with a memory, take
    `Algorithm.signals` of the whole batch, and `policy_loss` of each. Raises ConfigError as
    `build`, the rest as `policy_loss`.
    """
    algorithm = method if isinstance(method, Algorithm) else build(method)
    rollouts, corrected = algorithm.correct(rollouts)
    signals, counts = algorithm.signals(rollouts), core.surrogate.Counts.of(rollouts.mask)
    loss = policy_loss(algorithm, logprobs, rollouts, signals, counts, config, entropy)
    return loss.value, {**corrected, **signals.metrics, **loss.stats.summary()}


def policy_loss(
    algorithm: Algorithm,
    logprobs: Tensor,
    rollouts: Rollouts,
    signals: Signals,
    counts: Counts,
    config: LossConfig | Mapping[str, Any] = LossConfig(),
    entropy: Tensor | None = None,
) -> Loss:
    """The loss of these sequences, with its statistics.

    logprobs [B,S]: log pi_theta, nats, with gradient; rollouts, signals: of the same rows; counts:
    of the whole optimizer batch; entropy [B,S]: exact entropy of pi_theta for the metrics, where it
    is known, and with gradient for terms that need it.
    Raises ValueError for missing reference or sampler log-probs or entropies, FloatingPointError
    for non-finite log-probs on response tokens (`on_nonfinite: report` drops and counts them).
    """
    if not isinstance(config, LossConfig):
        config = validate(LossConfig, dict(config), "loss_fn")
    loss_inputs.check(algorithm, logprobs, rollouts, signals, counts, config, entropy)
    mask, limit = (
        loss_inputs.finite(logprobs, rollouts, config),
        algorithm.base.params.max_log_ratio,
    )
    log_ratio = core.surrogate.difference(logprobs, rollouts.old_logprobs, mask, limit)
    shaped = algorithm.shape(log_ratio, mask, signals)
    weights = _weights(algorithm, logprobs, rollouts, signals, mask, config)
    gains = algorithm.surrogate(shaped, logprobs, mask)
    gains = gains if weights is None else gains * weights
    if mask is not rollouts.mask and gains.shape == mask.shape:
        gains = gains.where(mask, 0.0)  # a dropped token adds nothing, and counts in the mean
    objective = core.surrogate.reduce(gains, rollouts.mask, algorithm.mean, counts)
    gradient = entropy if "entropy_gradient" in algorithm.needs else None
    parts = terms.losses(algorithm.terms, logprobs, gradient, mask, signals)
    parts |= _penalty(algorithm, logprobs, rollouts, mask, counts, config, log_ratio)
    loss = sum(parts.values(), -objective)

    stats = _stats(log_ratio, shaped, logprobs, rollouts, mask, limit, entropy)
    if algorithm.correction.bypass_mode and weights is not None:
        parts["rejected"] = (mask & (weights == 0)).sum()
    sums = stats.sums | parts | {"loss": loss}
    return Loss(loss, replace(stats, sums={k: v.detach().double() for k, v in sums.items()}))


def _weights(
    algorithm: Algorithm,
    logprobs: Tensor,
    rollouts: Rollouts,
    signals: Signals,
    mask: Tensor,
    config: LossConfig,
) -> Tensor | None:
    """What the gains are multiplied by, [B,S] or [B,1]; None: by 1."""
    correction, old = algorithm.correction, rollouts.old_logprobs
    if correction.bypass_mode:
        return off_policy.of_two_policies(correction, logprobs, old, mask, algorithm.mean)
    if config.use_importance_sampling_correction:
        assert rollouts.gen_logprobs is not None
        method = algorithm.base.method
        return off_policy.of_sampler(method, config.cut, old, rollouts.gen_logprobs, mask)
    weights, dtype = signals.extras.get(off_policy.WEIGHTS), core.surrogate.working_dtype(logprobs)
    return None if weights is None else weights.to(mask.device, dtype)


def _penalty(
    algorithm: Algorithm,
    logprobs: Tensor,
    rollouts: Rollouts,
    mask: Tensor,
    counts: Counts,
    config: LossConfig,
    log_ratio: Tensor,
) -> dict[str, Tensor]:
    """kl_coef KL(pi || pi_ref), where there is one."""
    coef, kind = config.reference_policy_kl_penalty, config.reference_policy_kl_type
    if not coef:
        return {}
    assert rollouts.ref_logprobs is not None
    kl = core.kl.estimate(logprobs, rollouts.ref_logprobs, mask, kind, log_ratio)
    return {"kl_loss": coef * core.surrogate.reduce(kl, rollouts.mask, algorithm.mean, counts)}


def _stats(
    log_ratio: Tensor,
    shaped: Shaped,
    logprobs: Tensor,
    rollouts: Rollouts,
    mask: Tensor,
    limit: float,
    entropy: Tensor | None,
) -> Stats:
    log_ratio, logprobs, judged = log_ratio.detach(), logprobs.detach(), shaped.judged.detach()
    weight = mask.to(log_ratio.dtype)
    stats = core.metrics.ratio_stats(log_ratio, shaped.log_ratio.detach(), logprobs, mask, limit)
    stats.sums |= core.metrics.clip_sums(judged, shaped.side, shaped.low, shaped.high, weight)
    tokens = core.surrogate.token_counts(rollouts.mask).sum()
    stats.sums["nonfinite_tokens"] = tokens - stats.sums["tokens"]
    if rollouts.ref_logprobs is not None:
        stats.sums["kl_ref"] = core.kl.estimate(logprobs, rollouts.ref_logprobs, mask).sum()
    if entropy is not None:
        stats.sums["entropy"] = entropy.detach().where(mask, 0.0).sum()
    return stats
