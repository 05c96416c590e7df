"""NeMo-RL's own loss, fed with a method's log_ratio', A' and bounds.

    ClippedPGLossFn( prev + log_ratio',  advantages = A',  ratio_clip = bounds,
    curr_logprobs_unfiltered = log pi )

KL, importance-sampling correction, dual clip and the base metrics stay NeMo-RL's. B sequences of S
tokens; data is [B,S], aligned with the tokens, and NeMo-RL's losses use [:, 1:] of it. GRPO and
GSPO pass through untouched.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from nemo_rl.algorithms.loss import ClippedPGLossFn, interfaces
from torch import Tensor

from nemo_algos.core import surrogate
from nemo_algos.methods import METHODS
from nemo_algos.methods.algorithm import Algorithm
from nemo_algos.methods.method import Params, clip_bounds, token_log_ratio
from nemo_algos.nemo import columns, loss_metrics
from nemo_algos.nemo.loss_metrics import MicroBatch
from nemo_algos.preflight.decided import decided


class AlgorithmLoss(ClippedPGLossFn):
    """A method as NeMo-RL's loss function. cfg: NeMo-RL's `loss_fn` section; what the method
    decides is set here."""

    def __init__(self, cfg: Any, algorithm: Algorithm, **kwargs: Any) -> None:
        super().__init__(cfg.model_copy(update=decided(algorithm)), **kwargs)
        self.algorithm = algorithm
        self.constant_bounds = columns.numbers(columns.example(algorithm))
        normalizer = getattr(interfaces, "MetricNormalizer", None)  # not in v0.7.0
        if normalizer:
            per_token, per_sequence = loss_metrics.PER_TOKEN, loss_metrics.PER_SEQUENCE
            self.metric_normalizations |= dict.fromkeys(per_token, normalizer.TOKENS)
            self.metric_normalizations |= dict.fromkeys(per_sequence, normalizer.SEQUENCES)

    def __call__(
        self,
        next_token_logprobs: Tensor,
        data: Any,
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> tuple[Tensor, dict[str, Any]]:
        """The loss of a micro-batch (a sum over the global batch's counts) and its metrics; see
        NeMo-RL."""
        counts = (global_valid_seqs, global_valid_toks)
        batch = self._batch(next_token_logprobs, data)
        # on their way to the host before NeMo-RL's loss waits for its own: they add no wait
        sent = loss_metrics.sent(self.algorithm, batch, data, *counts, is_stock(self.algorithm))
        if is_stock(self.algorithm):
            fed, data = self._untouched(batch, data)
        else:
            fed, data = _fed(self.algorithm, batch, data)
            self.ratio_clip_min, self.ratio_clip_max = batch.shaped.low, batch.shaped.high
        loss, values = super().__call__(fed, data, *counts)
        return loss, values | sent.arrived()

    def _batch(self, logprobs: Tensor, data: Any) -> MicroBatch:
        algorithm = self.algorithm
        weight = data["token_mask"][:, 1:] * data["sample_mask"][:, None]
        mask, prev = weight.bool(), data["prev_logprobs"][:, 1:]
        gap = logprobs.detach() - prev
        limit = torch.inf if is_stock(algorithm) else algorithm.params.max_log_ratio
        source = logprobs.detach() if _is_direct(algorithm) else logprobs
        log_ratio = surrogate.difference(source, prev, mask, limit)
        signals = columns.signals_of(data, algorithm, self.constant_bounds)
        shaped = algorithm.shape(log_ratio, mask, signals)
        finite = gap.isfinite() | ~mask
        return MicroBatch(
            logprobs, prev, weight, mask, gap, finite, limit, log_ratio, signals, shaped
        )

    def _untouched(self, batch: MicroBatch, data: Any) -> tuple[Tensor, dict[str, Any]]:
        """NeMo-RL's own log-probs and batch, but for advantages of 0 at a ratio that overflows:
        there the ratio is 1."""
        silent = _silent(self.algorithm, batch)
        own = batch.logprobs.detach().where(batch.logprobs.isfinite(), 0.0)
        data = {**data, "prev_logprobs": _aligned(torch.where(silent, own, batch.prev))}
        if self.reference_policy_kl_penalty:  # gradients of both are summed in NeMo-RL's order
            return batch.logprobs, data
        return torch.where(silent, own, batch.logprobs), data


def is_stock(algorithm: Algorithm) -> bool:
    """Whether NeMo-RL's loss is this one as it stands: GRPO's or GSPO's with constant bounds and
    `max_log_ratio` at its default, since NeMo-RL does not clamp log-ratios."""
    return (
        algorithm.base in (METHODS["grpo"], METHODS["gspo"])
        and algorithm.bounds.bounds is clip_bounds
        and algorithm.params.max_log_ratio == Params().max_log_ratio
    )


def _is_direct(algorithm: Algorithm) -> bool:
    """Whether the gradient reaches log pi past `shape`: NeMo-RL's ratio is of log pi itself."""
    return is_stock(algorithm) or algorithm.base.log_ratio is token_log_ratio


def _fed(algorithm: Algorithm, batch: MicroBatch, data: Any) -> tuple[Tensor, dict[str, Any]]:
    """The log-probs for NeMo-RL's ratio, and its batch with the method's A' and the true log-probs
    for its KL. Response tokens whose log-probs are not finite make loss and gradient NaN: the clamp
    would hide an infinite one."""
    fed = _of_ratio(algorithm, batch).where(batch.finite, batch.logprobs)
    zero, silent = _zero(algorithm, batch), _silent(algorithm, batch)
    prev = batch.prev.where(batch.prev.isfinite() | ~silent, 0.0)
    advantages = batch.shaped.advantages.where(batch.finite, torch.nan).where(~zero, 0.0)
    own = {"advantages": _aligned(advantages), "prev_logprobs": _aligned(prev)}
    return torch.where(silent, prev, fed), {
        "curr_logprobs_unfiltered": batch.logprobs,
        **data,
        **own,
    }


def _of_ratio(algorithm: Algorithm, batch: MicroBatch) -> Tensor:
    """log pi where NeMo-RL's own ratio is the method's, else prev + log_ratio'; [B,S-1]."""
    if algorithm.base.form == "logprob":
        return batch.logprobs
    if algorithm.base.log_ratio is token_log_ratio:
        within = batch.mask & (batch.gap.abs() <= batch.limit)
        return batch.logprobs.where(within, batch.prev + batch.log_ratio)
    return batch.prev + batch.shaped.log_ratio.expand(batch.mask.shape)


def _zero(algorithm: Algorithm, batch: MicroBatch) -> Tensor:
    """Advantages of 0 that contribute 0, [B,1] or [B,S-1]."""
    columns = batch.signals.columns(batch.mask, batch.log_ratio.dtype)
    return (columns.advantages == 0) & algorithm.base.flat_group_is_inert


def _silent(algorithm: Algorithm, batch: MicroBatch) -> Tensor:
    """[B,S-1] where such an advantage meets a ratio that is not finite: 0 by selection there."""
    ratio = batch.shaped.log_ratio.detach().exp()
    return _zero(algorithm, batch) & ~(batch.finite & ratio.isfinite())


def _aligned(x: Tensor) -> Tensor:
    """[B,S-1] -> [B,S], as NeMo-RL's batches."""
    return F.pad(x, (1, 0))
