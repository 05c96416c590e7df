"""Of what another policy sampled: what the loss takes, and with which weight.

    l = log pi_old - log pi_sampler of each token; with old_policy: sampler, log pi - log pi_sampler
    J = mean, over the tokens kept, of  w min(r' A', clip(r') A')   or   w A' log pi

The driver half is `correct`, the worker half, with old_policy: sampler, `of_two_policies`; the
formulas are algorithms/core/importance.py's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from nemo_algos.algorithms import core
from nemo_algos.algorithms.extensions.correction import CorrectionConfig

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.core.importance import Cut
    from nemo_algos.algorithms.core.surrogate import Mean
    from nemo_algos.algorithms.kernel import Method
    from nemo_algos.algorithms.rollouts import Rollouts

WEIGHTS = "rollout_is_weights"  # the signal's name


def correct(config: CorrectionConfig, rollouts: Rollouts) -> tuple[Rollouts, dict[str, float]]:
    """The rollouts as signals and loss take them, and metrics; the driver half.

    What is rejected leaves the mask: no mean counts it, nor do the KL penalty and the terms.
    With old_policy: sampler nothing is rejected yet. Raises ValueError where the sampler's
    log-probs are missing, or any is not finite.
    """
    if not config.active:
        return rollouts, {}
    mask, sampled = rollouts.mask, _sampler_logprobs(rollouts)
    if config.bypass_mode:
        return replace(rollouts, old_logprobs=sampled), {}
    log_ratio = core.importance.gap(rollouts.old_logprobs.double(), sampled, mask)
    kept = core.importance.kept_tokens(log_ratio, mask, config.rejections)
    weights, weighed = _weights(config, log_ratio, mask)
    corrected = replace(rollouts, mask=kept, rollout_is_weights=weights.expand(mask.shape))
    return corrected, _rejection_metrics(kept, mask) | weighed


def check(config: CorrectionConfig, rollouts: Rollouts) -> None:
    """Raise ValueError where these are not what `correct` gives."""
    if not config.active:
        return
    moved = rollouts.old_logprobs != rollouts.gen_logprobs
    if moved[rollouts.mask].any() if config.bypass_mode else rollouts.rollout_is_weights is None:
        reason = "these rollouts are not corrected"
        raise ValueError(f"{reason}. Give `Algorithm.signals` the result of `Algorithm.correct`.")


def of_two_policies(
    config: CorrectionConfig, logprobs: Tensor, sampled: Tensor, mask: Tensor, mean: Mean
) -> Tensor | None:
    """What each token's term is multiplied by, [B,S], with old_policy: sampler; None: by 1.

    The worker half: of the policy as it is now, so that what has drifted away is rejected too. A
    rejected token's factor is 0; it still counts in a token mean, and not in its sequence's.
    """
    if not (config.rollout_is or config.rollout_rs):
        return None
    log_ratio = core.importance.gap(logprobs, sampled, mask)
    kept = core.importance.kept_tokens(log_ratio, mask, config.rejections)
    factor = log_ratio.new_ones(mask.shape)
    if config.rollout_is:
        factor = core.importance.importance(log_ratio, mask, config.rollout_is, *config.cut)
    if mean == "sequence":
        factor = factor * core.importance.length_ratio(kept, mask)
    return factor.expand(mask.shape).where(kept, 0.0)


def of_sampler(
    method: Method, cut: tuple[Cut | None, float, float], old: Tensor, gen: Tensor, mask: Tensor
) -> Tensor:
    """The weights of `loss_fn.use_importance_sampling_correction`, [B,S] or [B,1].

    Of a token where the method's ratio is a token's, else their geometric mean over the sequence:
    the product's truncated mean goes to 0 with the length, whatever the policy does.
    """
    log_ratio = core.importance.gap(old, gen, mask)
    level = "geometric" if method.ratio == "sequence" else "token"
    return core.importance.importance(log_ratio, mask, level, *cut)


def sampler_metrics(
    method: Method, cut: tuple[Cut | None, float, float], old: Tensor, gen: Tensor, mask: Tensor
) -> dict[str, float]:
    """The metrics of those weights over a rollout batch."""
    whole = of_sampler(method, (None, 0.0, math.inf), old, gen, mask)
    return core.importance.weight_metrics(of_sampler(method, cut, old, gen, mask), whole, mask)


def _weights(
    config: CorrectionConfig, log_ratio: Tensor, mask: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """[B,S], [B,1], or 1 where none are asked for; and their metrics."""
    if config.rollout_is is None:
        return log_ratio.new_ones(()), {}
    raw = core.importance.importance(log_ratio, mask, config.rollout_is)
    weights = core.importance.importance(log_ratio, mask, config.rollout_is, *config.cut)
    metrics = core.importance.weight_metrics(weights, raw, mask)
    mean = core.importance.mean_weight(weights, mask)
    if config.rollout_is_batch_normalize and mean > 0:
        weights = weights / mean
    return weights, metrics


def _sampler_logprobs(rollouts: Rollouts) -> Tensor:
    sampled = rollouts.gen_logprobs
    if sampled is None:
        raise ValueError("rollout_correction needs gen_logprobs [B, S], the sampler's log-probs")
    bad = rollouts.mask & ~(sampled + rollouts.old_logprobs).isfinite()
    if bad.any():
        row, position = bad.nonzero()[0].tolist()
        raise ValueError(
            f"{int(bad.sum())} response tokens have log-probs that are not finite, from the "
            f"sampler or the trainer (first: sequence {row}, position {position}), so they cannot "
            "be corrected. Sample without top_p and top_k, and look for the NaN in the model."
        )
    return sampled


def _rejection_metrics(kept: Tensor, mask: Tensor) -> dict[str, float]:
    lost, tokens = (mask & ~kept).any(1).sum(), mask.sum()
    return {
        "correction/rejected_tokens": float(1 - kept.sum() / tokens) if tokens else 0.0,
        "correction/rejected_sequences": float(lost / mask.any(1).sum().clamp(min=1)),
    }
