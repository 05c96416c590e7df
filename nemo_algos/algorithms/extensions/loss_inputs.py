"""What the arguments of a loss must be, for its algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.extensions.inputs import POSITIVE
from nemo_algos.algorithms.extensions.loss_config import LossConfig, contradictions

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.core.surrogate import Counts
    from nemo_algos.algorithms.kernel import Signals
    from nemo_algos.algorithms.rollouts import Rollouts


def check(
    algorithm: Algorithm,
    logprobs: Tensor,
    rollouts: Rollouts,
    signals: Signals,
    counts: Counts,
    config: LossConfig,
    entropy: Tensor | None,
) -> None:
    """Raises ValueError where the arguments of `policy_loss` do not go together."""
    weighed = config.use_importance_sampling_correction
    for finding in contradictions(algorithm.correction, weighed):
        raise ValueError(str(finding))
    if not hasattr(logprobs, "requires_grad"):  # without an import of torch
        found = type(logprobs).__name__
        raise ValueError(f"logprobs must be a tensor with gradient, got a {found}")
    if logprobs.shape != rollouts.mask.shape:
        raise ValueError(
            f"logprobs has shape {list(logprobs.shape)}, but the mask of the rollouts has "
            f"{list(rollouts.mask.shape)}. Pass one log-prob per position."
        )
    if config.reference_policy_kl_penalty > 0 and rollouts.ref_logprobs is None:
        raise ValueError("reference_policy_kl_penalty above 0 needs ref_logprobs [B, S]")
    if weighed and rollouts.gen_logprobs is None:
        needed = "gen_logprobs [B, S], the sampler's log-probs"
        raise ValueError(f"use_importance_sampling_correction needs {needed}")
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
    given = {k: [*x.shape] for k, x in own.items() if not isinstance(x, (int, float))}
    rows, positions = rollouts.mask.shape
    wanted = {k: [rows, positions if each else 1] for k, each in algorithm.per_token.items()}
    if given != wanted:
        raise ValueError(
            f"these are not signals of {algorithm.name} for these rollouts: their shapes are "
            f"{given} instead of {wanted}. Take `Algorithm.signals` of the whole batch, and the "
            "same rows of both."
        )
    if min(counts.sequences, counts.tokens) <= 0 and rollouts.mask.any():
        raise ValueError(
            f"the loss cannot be divided by {counts}. Take `Counts.of` the mask of the whole "
            "optimizer batch."
        )


def finite(logprobs: Tensor, rollouts: Rollouts, config: LossConfig) -> Tensor:
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
