"""The loss: surrogate, off-policy weights, KL penalty, terms, and statistics of what happened.

loss = -J + kl_coef KL + terms   J = mean( w_t  min(r' A', clip(r') A') )  or  mean( w_t A' log pi )
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from nemo_algos.algorithms import core
from nemo_algos.algorithms.algorithm import POSITIVE, Algorithm
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions import terms
from nemo_algos.algorithms.extensions.correction import WEIGHTS, bypass_weights, sampler_weights
from nemo_algos.algorithms.extensions.loss_config import (
    LossConfig,
    centred_weights,
    contradictions,
)
from nemo_algos.algorithms.kernel import Method, Shaped, Signals
from nemo_algos.findings import refuse_first, validate

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.core.metrics import Stats
    from nemo_algos.algorithms.core.surrogate import Counts
    from nemo_algos.algorithms.rollouts import Rollouts
    from nemo_algos.algorithms.shapes import Mask, PerToken


Heads = tuple["Tensor", "Tensor"]


class Loss(NamedTuple):
    """value: scalar to differentiate, this micro-batch's share of the loss; stats: additive."""

    value: Tensor
    stats: Stats


def batch_loss(
    method: Algorithm | Method | dict[str, Any] | str,
    logprobs: PerToken,
    rollouts: Rollouts,
    config: LossConfig | Mapping[str, Any] = LossConfig(),
    entropy: PerToken | None = None,
    heads: Heads | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a whole rollout batch, scalar, and its metrics: both halves in one call.

    method: what `build` takes, or gives; logprobs [B,S]: log pi_theta, nats, with gradient; the
    rest as `policy_loss`. Group statistics are of these rollouts: for minibatches, and for methods
    with a memory, take `Algorithm.signals` of the whole batch, and `policy_loss` of each. Raises
    ConfigError as `build`, the rest as `policy_loss`; warns where these seem to be a part that cuts
    a group.
    """
    import torch

    cut = _cut_groups(rollouts)
    if cut:
        warnings.warn(cut, stacklevel=2)
    algorithm = method if isinstance(method, Algorithm) else build(method)
    rollouts, corrected = algorithm.correct(rollouts)
    signals = algorithm.signals(rollouts)
    counts = core.surrogate.Counts.of(rollouts.mask)
    loss = policy_loss(algorithm, logprobs, rollouts, signals, counts, config, entropy, heads)
    if torch.is_grad_enabled() and not loss.value.requires_grad:
        raise ValueError(
            "logprobs have no gradient, so the loss would train nothing. Pass them undetached; for "
            "metrics alone call this under torch.no_grad()."
        )
    return loss.value, {**corrected, **signals.metrics, **loss.stats.summary()}


def _cut_groups(rollouts: Rollouts) -> str:
    """A sentence where all groups have one size but the first or last row's, which has less."""
    sizes = rollouts.groups.count[rollouts.groups.index.unique_consecutive()].tolist()
    whole = max(sizes, default=0)
    ends = {*sizes[:1], *sizes[-1:]}
    if len(sizes) != len(rollouts.groups.count) or {*sizes[1:-1]} - {whole} or ends == {whole}:
        return ""
    return (
        f"the first or last group has {min(ends)} responses and another {whole}. If this is a part "
        "of a batch, a cut group has other statistics: take `Algorithm.signals` of the whole "
        "rollout batch, and `policy_loss` of its parts."
    )


def policy_loss(
    algorithm: Algorithm,
    logprobs: PerToken,
    rollouts: Rollouts,
    signals: Signals,
    counts: Counts,
    config: LossConfig | Mapping[str, Any] = LossConfig(),
    entropy: PerToken | None = None,
    heads: Heads | None = None,
) -> Loss:
    """The loss of these sequences, with its statistics.

    logprobs [B,S]: log pi_theta, nats, with gradient; rollouts, signals: of the same rows; counts:
    of the whole optimizer batch; entropy [B,S]: exact entropy of pi_theta for the metrics, where it
    is known, and with gradient for terms that need it; heads [B,S,K]: where scores are centred
    under the sampler, log pi_theta with gradient, and the sampler's log-probs, of the K tokens that
    the sampler took for the likeliest.
    Raises ValueError for missing reference or sampler log-probs or entropies, FloatingPointError
    for non-finite log-probs on response tokens (`on_nonfinite: report` drops and counts them).
    """
    if not isinstance(config, LossConfig):
        config = validate(LossConfig, dict(config), "loss_fn")
    _check_arguments(algorithm, logprobs, rollouts, signals, counts, config, entropy)
    mask = _finite_mask(logprobs, rollouts, config)
    limit = algorithm.base.params.max_log_ratio
    log_ratio = core.surrogate.difference(logprobs, rollouts.old_logprobs, mask, limit)
    # a number for each sequence costs nothing in float64, and luspo's |o_i| A_i cancel in the loss
    by_sequence = algorithm.base.method.ratio == "sequence"
    exact = log_ratio.double() if by_sequence else log_ratio
    shaped = algorithm.transform(exact, mask, signals)
    weights = _weights(algorithm, logprobs, rollouts, signals, mask, config)
    gains = algorithm.surrogate(shaped, logprobs, mask)
    gains = gains if weights is None else gains * weights
    if mask is not rollouts.mask and gains.shape == mask.shape:
        gains = gains.where(mask, 0.0)  # a dropped token adds nothing, and counts in the mean
    objective = core.surrogate.reduce(gains, rollouts.mask, algorithm.mean, counts)
    gradient = entropy if "entropy_gradient" in algorithm.needs else None
    parts = terms.losses(algorithm.terms, logprobs, gradient, mask, signals)
    parts |= _penalty(algorithm, logprobs, rollouts, mask, counts, config, log_ratio)
    parts |= _centering(
        algorithm,
        heads,
        signals=signals,
        rollouts=rollouts,
        mask=mask,
        counts=counts,
        config=config,
    )
    loss = sum(parts.values(), -objective)

    stats = _stats(log_ratio, shaped, logprobs, rollouts, mask, limit, entropy)
    if algorithm.correction.bypass_mode and weights is not None:
        parts["rejected"] = (mask & (weights == 0)).sum()
    sums = stats.sums | parts | {"loss": loss}
    sums = {k: v.detach().double() for k, v in sums.items()}
    return Loss(loss.to(log_ratio.dtype), replace(stats, sums=sums))


def _check_arguments(
    algorithm: Algorithm,
    logprobs: PerToken,
    rollouts: Rollouts,
    signals: Signals,
    counts: Counts,
    config: LossConfig,
    entropy: PerToken | None,
) -> None:
    """Raises ValueError where the arguments of `policy_loss` do not go together."""
    weighed = config.use_importance_sampling_correction
    for finding in contradictions(algorithm.correction, weighed):
        raise ValueError(str(finding))
    if not hasattr(logprobs, "requires_grad"):  # without an import of torch
        found = type(logprobs).__name__
        raise ValueError(f"logprobs must be a tensor with gradient, got a {found}")
    refuse_first(
        (
            logprobs.shape != rollouts.mask.shape,
            f"logprobs has shape {list(logprobs.shape)}, but the mask of the rollouts has "
            f"{list(rollouts.mask.shape)}. Pass one log-prob per position.",
        ),
        (
            config.reference_policy_kl_penalty > 0 and rollouts.ref_logprobs is None,
            "reference_policy_kl_penalty above 0 needs ref_logprobs [B, S]",
        ),
        (
            weighed and rollouts.gen_logprobs is None,
            "use_importance_sampling_correction needs gen_logprobs [B, S], the sampler's log-probs",
        ),
    )
    _check_signals(algorithm, rollouts, signals, counts)
    needed = "entropy_gradient" in algorithm.needs
    if needed and (entropy is None or logprobs.requires_grad > entropy.requires_grad):
        raise ValueError(
            f"{algorithm.name} needs the policy's entropy with its gradient. Give `policy_loss` "
            "the entropy [B, S] computed from the logits."
        )


def _check_signals(
    algorithm: Algorithm, rollouts: Rollouts, signals: Signals, counts: Counts
) -> None:
    bounds = {"low": signals.low, "high": signals.high}
    own = bounds | {"advantages": signals.advantages, **signals.extras}
    given = {}
    for k, x in own.items():
        if not isinstance(x, (int, float)):
            given[k] = [*x.shape]
    rows, positions = rollouts.mask.shape
    wanted = {}
    for name, per_token in algorithm.per_token.items():
        wanted[name] = [rows, positions if per_token else 1]
    if given != wanted:
        raise ValueError(
            f"these are not signals of {algorithm.name} for these rollouts: their shapes are "
            f"{given} instead of {wanted}. Take `Algorithm.signals` of the whole batch, and the "
            "same rows of both."
        )
    mark = signals.mark
    if mark is not None and not rollouts.marks.to(mark).isclose(mark, 0.01, 0.01, True).all():
        raise ValueError(
            "the rows of `signals` are not those of `rollouts`: their old log-probs differ. Take "
            "the same rows of both, in the same order."
        )
    if min(counts.sequences, counts.tokens) <= 0 and rollouts.mask.any():
        raise ValueError(
            f"the loss cannot be divided by {counts}. Take `Counts.of` the mask of the whole "
            "optimizer batch."
        )


def _finite_mask(logprobs: PerToken, rollouts: Rollouts, config: LossConfig) -> Tensor:
    """The mask without response tokens whose log-probs are NaN or infinite.

    Raises ValueError for log-probs above 0; FloatingPointError where there are any that are not
    finite, unless `on_nonfinite: report`.
    """
    mask = rollouts.mask
    limit = rollouts.largest_logprob
    own = logprobs.detach().where(mask, 0.0)
    total = own + rollouts.old_logprobs
    for extra in (rollouts.ref_logprobs, rollouts.gen_logprobs):
        total = total if extra is None else total + extra
    # one answer of the device for both questions
    if not mask.numel() or total.where(mask, 0.0).sum().isfinite() & (own.max() <= limit):
        return mask
    positive = own[(own > limit) & own.isfinite()]
    if len(positive):
        raise ValueError(POSITIVE.format(name="logprobs", value=float(positive.max())))
    bad = mask & ~total.isfinite()
    if not bad.any():  # only the sum overflowed
        return mask
    if config.on_nonfinite == "error":
        row, position = bad.nonzero()[0].tolist()
        raise FloatingPointError(
            f"{int(bad.sum())} response tokens have non-finite log-probs (first: sequence {row}, "
            f"position {position}). Lower the learning rate, or set `loss_fn.on_nonfinite: report` "
            "to drop and count them."
        )
    return mask & ~bad


def _weights(
    algorithm: Algorithm,
    logprobs: PerToken,
    rollouts: Rollouts,
    signals: Signals,
    mask: Mask,
    config: LossConfig,
) -> Tensor | None:
    """What the gains are multiplied by, [B,S] or [B,1]; None: by 1."""
    correction = algorithm.correction
    old = rollouts.old_logprobs
    if correction.bypass_mode:
        return bypass_weights(correction, logprobs, old, mask, algorithm.mean)
    if config.use_importance_sampling_correction:
        assert rollouts.gen_logprobs is not None
        method = algorithm.base.method
        turn = signals.extras.get("turn")
        return sampler_weights(method, config.cut, old, rollouts.gen_logprobs, mask, turn)
    weights = signals.extras.get(WEIGHTS)
    dtype = core.surrogate.working_dtype(logprobs)
    if weights is None:
        return None
    return weights.to(mask.device, dtype)


def _penalty(
    algorithm: Algorithm,
    logprobs: PerToken,
    rollouts: Rollouts,
    mask: Mask,
    counts: Counts,
    config: LossConfig,
    log_ratio: PerToken,
) -> dict[str, Tensor]:
    """kl_coef KL(pi || pi_ref), where there is one."""
    coef = config.reference_policy_kl_penalty
    kind = config.reference_policy_kl_type
    if not coef:
        return {}
    assert rollouts.ref_logprobs is not None
    kl = core.kl.estimate(logprobs, rollouts.ref_logprobs, mask, kind, log_ratio)
    return {"kl_loss": coef * core.surrogate.reduce(kl, rollouts.mask, algorithm.mean, counts)}


def _centering(
    algorithm: Algorithm,
    heads: Heads | None,
    signals: Signals,
    rollouts: Rollouts,
    mask: Mask,
    counts: Counts,
    config: LossConfig,
) -> dict[str, Tensor]:
    """mean(A C): -A log pi with it is -A (log pi less its mean under the sampler)."""
    if heads is None:
        return {}
    cut = centred_weights(algorithm, config)
    ours, sampled = heads
    if ours.shape != sampled.shape or ours.shape[:-1] != mask.shape:
        rows, positions = mask.shape
        raise ValueError(
            f"heads have shapes {[*ours.shape]} and {[*sampled.shape]}, and must be both "
            f"[{rows}, {positions}, K]: the log-probs of the K tokens likeliest to the sampler."
        )
    here = mask[..., None]
    dtype = core.surrogate.working_dtype(ours)
    log_p, log_q = (x.to(dtype).where(here, 0.0) for x in (ours, sampled))
    moved = signals.advantages.to(mask.device, dtype) * core.importance.centering(log_p, log_q, cut)
    moved = moved.where(mask, 0.0)
    return {"centering": core.surrogate.reduce(moved, rollouts.mask, algorithm.mean, counts)}


def _stats(
    log_ratio: PerToken,
    shaped: Shaped,
    logprobs: PerToken,
    rollouts: Rollouts,
    mask: Mask,
    limit: float,
    entropy: PerToken | None,
) -> Stats:
    log_ratio = log_ratio.detach()
    logprobs = logprobs.detach()
    compared = shaped.clip_log_ratio.detach()
    weight = mask.to(log_ratio.dtype)
    stats = core.metrics.ratio_stats(log_ratio, shaped.log_ratio.detach(), logprobs, mask, limit)
    stats.sums |= core.metrics.clip_sums(
        compared, shaped.clip_sign, shaped.low, shaped.high, weight
    )
    tokens = core.surrogate.token_counts(rollouts.mask).sum()
    stats.sums["nonfinite_tokens"] = tokens - stats.sums["tokens"]
    if rollouts.ref_logprobs is not None:
        stats.sums["kl_ref"] = core.kl.estimate(logprobs, rollouts.ref_logprobs, mask).sum()
    if entropy is not None:
        stats.sums["entropy"] = entropy.detach().where(mask, 0.0).sum()
    return stats
