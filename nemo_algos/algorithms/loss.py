"""The loss: surrogate, off-policy weights, KL penalty, and the statistics of what happened.

loss = -J + kl_coef KL + terms   J = mean( w_t  min(r' A', clip(r') A') )  or  mean( w_t A' log pi )
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from nemo_algos.algorithms import core
from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.method import Method
from nemo_algos.algorithms.riders import off_policy
from nemo_algos.algorithms.riders.correction import CorrectionConfig
from nemo_algos.algorithms.riders.terms import Inputs
from nemo_algos.algorithms.signals import Shaped, Signals
from nemo_algos.config import Finding, Section, validate

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.core.importance import Cut
    from nemo_algos.algorithms.core.metrics import Stats
    from nemo_algos.algorithms.core.surrogate import Counts
    from nemo_algos.algorithms.rollouts import Rollouts

DERIVED = {
    "ratio_clip_min": "the method's bounds: set method.clip_low",
    "ratio_clip_max": "the method's bounds: set method.clip_high",
    "ratio_clip_c": "the method's: set method.dual_clip",
    "token_level_loss": "the method's mean: set method.aggregation",
    "sequence_level_importance_ratios": "the method's ratio: choose gspo, or quatro's method.ratio",
    "kl_coef": "named as in NeMo-RL: set loss_fn.reference_policy_kl_penalty",
}


class MismatchConfig(Section):
    """The `mismatch:` section: a limit on how far the sampler is from the trainer."""

    threshold: float = Field(default=0.5, gt=0)
    """|d| in nats beyond which a token is counted (0.5 is a ratio of 1.65, twice as far from 1 as a
    clip at 1.28 in the log)."""
    stop_above: float | None = Field(default=None, gt=0)
    """Limit of a step's mean |d|, nats."""
    dump: int = Field(default=0, ge=0)
    """Write the log-probs of every so many steps for `nemo-algos mismatch`, and of one that is
    stopped."""


class LossConfig(Section):
    """The `loss_fn:` section, NeMo-RL's names; a key of the method's is refused, with its name."""

    reference_policy_kl_penalty: float = Field(default=0.0, ge=0)
    reference_policy_kl_type: Literal["k1", "k2", "k3"] = "k3"
    use_importance_sampling_correction: bool = False
    """Weigh tokens by trainer over sampler."""
    truncated_importance_sampling_type: Literal["tis", "icepop", "seq-mask-tis"] | None = None
    truncated_importance_sampling_ratio: float | None = Field(default=None, gt=0)
    truncated_importance_sampling_ratio_min: float | None = Field(default=None, ge=0)
    on_nonfinite: Literal["error", "report"] = "error"
    """What a log-prob that is not finite does to the run."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_derived(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        if written := [f"{k} is {reason}" for k, reason in DERIVED.items() if k in data]:
            raise ValueError("; ".join(written))
        return data

    @model_validator(mode="after")
    def _correction_is_whole(self) -> LossConfig:
        kind = self.truncated_importance_sampling_type
        low = self.truncated_importance_sampling_ratio_min
        high = self.truncated_importance_sampling_ratio
        if kind and not self.use_importance_sampling_correction:
            raise ValueError(f"{kind} needs use_importance_sampling_correction: true")
        if (kind is None) != (high is None):
            names = "truncated_importance_sampling_type and truncated_importance_sampling_ratio"
            raise ValueError(f"set {names} together")
        if kind in ("icepop", "seq-mask-tis") and low is None:
            raise ValueError(f"{kind} needs truncated_importance_sampling_ratio_min")
        if low is not None and (high is None or low > high):
            raise ValueError(
                "truncated_importance_sampling_ratio_min must be at most "
                "truncated_importance_sampling_ratio"
            )
        return self

    @property
    def cut(self) -> tuple[Cut | None, float, float]:
        """How off-policy weights are cut, and their bounds."""
        low = self.truncated_importance_sampling_ratio_min or 0.0
        high = self.truncated_importance_sampling_ratio or math.inf
        return self.truncated_importance_sampling_type, low, high


def contradictions(
    correction: CorrectionConfig, weighed: bool, stop_above: float | None = None
) -> Iterator[Finding]:
    """What cannot be together with a rollout correction.

    weighed: loss_fn.use_importance_sampling_correction; stop_above: mismatch.stop_above.
    """
    if correction.active and weighed:
        reason = "rollout_correction weighs by the sampler too: set this to false, or remove that"
        yield Finding("loss_fn.use_importance_sampling_correction", reason)
    if correction.bypass_mode and stop_above is not None:
        reason = "in bypass_mode the trainer's log-probs are the sampler's, and nothing is measured"
        yield Finding("mismatch.stop_above", f"{reason}: remove it, or set bypass_mode: false")


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
    _check_inputs(algorithm, logprobs, rollouts, config)
    _check_signals(algorithm, rollouts, signals, counts)
    _check_entropy(algorithm, logprobs, entropy)
    mask, limit = _finite(logprobs, rollouts, config), algorithm.base.params.max_log_ratio
    log_ratio = core.surrogate.difference(logprobs, rollouts.old_logprobs, mask, limit)
    shaped = algorithm.shape(log_ratio, mask, signals)
    terms = surrogate(algorithm, shaped, logprobs, mask)
    weights = _weights(algorithm, logprobs, rollouts, signals, mask, config)
    if weights is not None:
        terms = terms * weights
    if mask is not rollouts.mask and terms.shape == mask.shape:
        terms = terms.where(mask, 0.0)  # a dropped token adds nothing, and counts in the mean
    loss = -core.surrogate.reduce(terms, rollouts.mask, algorithm.mean, counts)
    parts = term_losses(algorithm, logprobs, entropy, mask, signals)
    loss = sum(parts.values(), loss)
    if config.reference_policy_kl_penalty > 0 and rollouts.ref_logprobs is not None:
        kind = config.reference_policy_kl_type
        kl = core.surrogate.kl_terms(logprobs, rollouts.ref_logprobs, mask, kind)
        penalty = core.surrogate.reduce(kl, rollouts.mask, algorithm.mean, counts)
        parts["kl_loss"] = config.reference_policy_kl_penalty * penalty
        loss = loss + parts["kl_loss"]
    stats = _stats(shaped, logprobs.detach(), log_ratio.detach(), rollouts, mask, limit, entropy)
    if algorithm.correction.bypass_mode and weights is not None:
        parts["rejected"] = (mask & (weights == 0)).sum()
    sums = stats.sums | parts | {"loss": loss}
    return Loss(loss, replace(stats, sums={k: v.detach().double() for k, v in sums.items()}))


def term_losses(
    algorithm: Algorithm, logprobs: Tensor, entropy: Tensor | None, mask: Tensor, signals: Signals
) -> dict[str, Tensor]:
    """These rows' share of each term of the loss, scalars by `terms/NAME`."""
    if not algorithm.terms:
        return {}
    dtype = core.surrogate.working_dtype(logprobs)
    given = (logprobs, entropy if "entropy_gradient" in algorithm.needs else None)
    logprobs_, entropy_ = (x if x is None else x.to(dtype).where(mask, 0.0) for x in given)
    assert logprobs_ is not None
    inputs, signals = Inputs(logprobs_, entropy_, mask), signals.to(mask.device, dtype)
    return {f"terms/{added.term.name}": added.loss(inputs, signals) for added in algorithm.terms}


def surrogate(algorithm: Algorithm, shaped: Shaped, logprobs: Tensor, mask: Tensor) -> Tensor:
    """What J is the mean of, per token [B,S] or per sequence [B,1]."""
    if algorithm.base.method.form == "logprob":
        dtype = core.surrogate.working_dtype(logprobs)
        return logprobs.to(dtype).where(mask, 0.0) * shaped.advantages
    bounds, dual_clip = algorithm.ratio_bounds(shaped), algorithm.base.params.dual_clip
    return core.surrogate.clipped_surrogate(shaped.log_ratio, shaped.advantages, *bounds, dual_clip)


def _weights(
    algorithm: Algorithm,
    logprobs: Tensor,
    rollouts: Rollouts,
    signals: Signals,
    mask: Tensor,
    config: LossConfig,
) -> Tensor | None:
    """What the terms are multiplied by, [B,S] or [B,1]; None: by 1."""
    correction, old = algorithm.correction, rollouts.old_logprobs
    if correction.bypass_mode:
        return off_policy.of_two_policies(correction, logprobs, old, mask, algorithm.mean)
    if config.use_importance_sampling_correction:
        assert rollouts.gen_logprobs is not None
        method = algorithm.base.method
        return off_policy.of_sampler(method, config.cut, old, rollouts.gen_logprobs, mask)
    weights, dtype = signals.extras.get(off_policy.WEIGHTS), core.surrogate.working_dtype(logprobs)
    return None if weights is None else weights.to(mask.device, dtype)


def _check_inputs(
    algorithm: Algorithm, logprobs: Tensor, rollouts: Rollouts, config: LossConfig
) -> None:
    weighed = config.use_importance_sampling_correction
    for finding in contradictions(algorithm.correction, weighed):
        raise ValueError(str(finding))
    if not hasattr(logprobs, "requires_grad"):  # without an import of torch
        found = type(logprobs).__name__
        raise ValueError(f"logprobs must be a tensor with gradient, but it is of type {found}")
    if logprobs.shape != rollouts.mask.shape:
        raise ValueError(
            f"logprobs have shape {list(logprobs.shape)}, the rollouts' mask "
            f"{list(rollouts.mask.shape)}: pass one log-prob per position"
        )
    if config.reference_policy_kl_penalty > 0 and rollouts.ref_logprobs is None:
        raise ValueError("reference_policy_kl_penalty > 0 needs ref_logprobs [B, S]")
    if config.use_importance_sampling_correction and rollouts.gen_logprobs is None:
        needed = "gen_logprobs [B, S], the sampler's log-probs"
        raise ValueError(f"use_importance_sampling_correction needs {needed}")


def _check_signals(
    algorithm: Algorithm, rollouts: Rollouts, signals: Signals, counts: Counts
) -> None:
    bounds = {"low": signals.low, "high": signals.high}
    own = bounds | {"advantages": signals.advantages, **signals.extras}
    given = {k: [*x.shape] for k, x in own.items() if not isinstance(x, (int, float))}
    rows, positions = rollouts.mask.shape
    wanted = {k: [rows, positions if each else 1] for k, each in algorithm.per_token.items()}
    if given != wanted:
        raise ValueError(
            f"these are not the signals of {algorithm.name} for these rollouts: their shapes are "
            f"{given} and not {wanted}. Take `Algorithm.signals` of the whole batch, and the same "
            "rows of both."
        )
    if min(counts.sequences, counts.tokens) <= 0 and rollouts.mask.any():
        raise ValueError(
            f"{counts} cannot be divided by: take `Counts.of` the whole optimizer batch's mask"
        )


def _check_entropy(algorithm: Algorithm, logprobs: Tensor, entropy: Tensor | None) -> None:
    needed = "entropy_gradient" in algorithm.needs
    if needed and (entropy is None or logprobs.requires_grad > entropy.requires_grad):
        raise ValueError(
            f"{algorithm.name} needs the policy's entropy with its gradient: give policy_loss the "
            "entropy [B, S] that is computed from the logits"
        )


def _finite(logprobs: Tensor, rollouts: Rollouts, config: LossConfig) -> Tensor:
    """The mask without response tokens whose log-probs are NaN or infinite."""
    total = logprobs.detach() + rollouts.old_logprobs
    for extra in (rollouts.ref_logprobs, rollouts.gen_logprobs):
        total = total if extra is None else total + extra
    if core.surrogate.all_finite(total, rollouts.mask):
        return rollouts.mask
    bad = rollouts.mask & ~total.isfinite()
    if config.on_nonfinite == "error":
        row, position = bad.nonzero()[0].tolist()
        raise FloatingPointError(
            f"{int(bad.sum())} response tokens have non-finite log-probs (first: sequence {row}, "
            f"position {position}): lower the learning rate, or set loss_fn.on_nonfinite: report "
            "to drop and count them"
        )
    return rollouts.mask & ~bad


def _stats(
    shaped: Shaped,
    logprobs: Tensor,
    log_ratio: Tensor,
    rollouts: Rollouts,
    mask: Tensor,
    limit: float,
    entropy: Tensor | None,
) -> Stats:
    weight = mask.to(log_ratio.dtype)
    stats = core.metrics.ratio_stats(log_ratio, shaped.log_ratio.detach(), logprobs, mask, limit)
    judged = shaped.judged.detach()
    stats.sums |= core.metrics.clip_sums(judged, shaped.side, shaped.low, shaped.high, weight)
    tokens = core.surrogate.token_counts(rollouts.mask).sum()
    stats.sums["nonfinite_tokens"] = tokens - stats.sums["tokens"]
    if rollouts.ref_logprobs is not None:
        stats.sums["kl_ref"] = core.surrogate.kl_terms(logprobs, rollouts.ref_logprobs, mask).sum()
    if entropy is not None:
        stats.sums["entropy"] = entropy.detach().where(mask, 0.0).sum()
    return stats
