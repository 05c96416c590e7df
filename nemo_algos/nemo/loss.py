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

from nemo_algos.core import metrics, surrogate
from nemo_algos.methods.algorithm import Algorithm, Shaped, Signals
from nemo_algos.methods.method import clip_bounds, token_log_ratio
from nemo_algos.nemo.config import decided

# Signals in a batch: per sequence ([B], or [B,S] with equal columns), and per token ([B,S]).
PER_ROW, PER_POSITION = "nemo_algos_row_", "nemo_algos_token_"

# Shares of all valid tokens (sequences): NeMo-RL adds them up over micro-batches and ranks.
PER_TOKEN = {
    "clip/fraction": "clipped",
    "clip/positive_above": "positive_above",
    "clip/positive_below": "positive_below",
    "clip/negative_above": "negative_above",
    "clip/negative_below": "negative_below",
    "ratio/mean": "ratio",
    "ratio/clamped_tokens": "clamped_tokens",
    "kl/old": "kl_old",
}
PER_SEQUENCE = {
    "ratio/clamped_sequences": "clamped_sequences",
    "kl/old_sequence": "kl_old_sequence",
}


class AlgorithmLoss(ClippedPGLossFn):
    """A method as NeMo-RL's loss function. cfg: NeMo-RL's `loss_fn` section; what the method
    decides is set here."""

    def __init__(self, cfg: Any, algorithm: Algorithm, **kwargs: Any) -> None:
        super().__init__(cfg.model_copy(update=decided(algorithm)), **kwargs)
        self.algorithm = algorithm
        normalizer = getattr(interfaces, "MetricNormalizer", None)  # not in v0.7.0
        if normalizer:
            self.metric_normalizations |= dict.fromkeys(PER_TOKEN, normalizer.TOKENS)
            self.metric_normalizations |= dict.fromkeys(PER_SEQUENCE, normalizer.SEQUENCES)

    def __call__(
        self,
        next_token_logprobs: Tensor,
        data: Any,
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> tuple[Tensor, dict[str, Any]]:
        """The loss of a micro-batch (a sum over the global batch's counts) and its metrics; see
        NeMo-RL."""
        weight = data["token_mask"][:, 1:] * data["sample_mask"][:, None]
        mask = weight.bool()
        prev, limit = data["prev_logprobs"][:, 1:], self.algorithm.params.max_log_ratio
        fed = next_token_logprobs
        straight = is_stock(self.algorithm) or self._straight(fed, prev)
        log_ratio = surrogate.difference(fed.detach() if straight else fed, prev, mask, limit)
        signals = signals_of(data, self.algorithm)
        shaped = self.algorithm.shape(log_ratio, mask, signals)
        if not is_stock(self.algorithm):
            data = self._fed(fed, mask, shaped, data)
        if not straight:
            fed = prev + shaped.log_ratio.expand(mask.shape)
        loss, values = super().__call__(fed, data, global_valid_seqs, global_valid_toks)
        counts = (global_valid_seqs, global_valid_toks)
        values |= _metrics(self.algorithm, log_ratio.detach(), shaped, signals, weight, *counts)
        if fed is not next_token_logprobs:
            values["approx_entropy"] = _approx_entropy(next_token_logprobs, data, mask, counts[1])
        if self.disable_ppo_ratio:  # what NeMo-RL reports as the ratio is then the log-prob
            values |= _probs_ratio(log_ratio.detach(), mask, values["ratio/mean"])
        return loss, values

    def _straight(self, logprobs: Tensor, prev: Tensor) -> bool:
        """Whether NeMo-RL's own ratio is the method's: one per token, none beyond the clamp (or
        NaN)."""
        if self.algorithm.base.form == "logprob":
            return True
        if self.algorithm.base.log_ratio is not token_log_ratio:
            return False
        return bool((logprobs.detach() - prev).abs().max() < self.algorithm.params.max_log_ratio)

    def _fed(self, logprobs: Tensor, mask: Tensor, shaped: Shaped, data: Any) -> dict[str, Any]:
        """NeMo-RL's batch with the method's A' and bounds, and the true log-probs for its KL."""
        self.ratio_clip_min, self.ratio_clip_max = shaped.low, shaped.high
        advantages = F.pad(shaped.advantages.expand(mask.shape), (1, 0))
        return {"curr_logprobs_unfiltered": logprobs, **data, "advantages": advantages}


def is_stock(algorithm: Algorithm) -> bool:
    """Whether NeMo-RL's loss is this one as it stands: GRPO's or GSPO's with constant bounds."""
    return algorithm.base.name in ("grpo", "gspo") and algorithm.bounds.bounds is clip_bounds


def signals_of(data: Any, algorithm: Algorithm) -> Signals:
    """The driver half's signals as they travel in a batch."""
    rows = {k.removeprefix(PER_ROW): first(v) for k, v in data.items() if k.startswith(PER_ROW)}
    positions = {
        k.removeprefix(PER_POSITION): v[:, 1:]
        for k, v in data.items()
        if k.startswith(PER_POSITION)
    }
    per_token = algorithm.advantages.token_advantages
    advantages = data["advantages"][:, 1:] if per_token else first(data["advantages"])
    low, high = rows.pop("low", torch.inf), rows.pop("high", torch.inf)
    return Signals(advantages, low, high, rows | positions, {})


def first(x: Tensor) -> Tensor:
    """[B] of [B], or of [B,S] with equal columns."""
    return x if x.dim() == 1 else x[:, 0]


@torch.no_grad()
def _metrics(
    algorithm: Algorithm,
    log_ratio: Tensor,
    shaped: Shaped,
    signals: Signals,
    weight: Tensor,
    global_valid_seqs: Tensor,
    global_valid_toks: Tensor,
) -> dict[str, float]:
    columns, weight = signals.columns(weight, log_ratio.dtype), weight.to(log_ratio.dtype)
    advantages = shaped.advantages if algorithm.base.clips == "ratio" else columns.advantages
    judged, limit = shaped.clip_log_ratio.detach(), algorithm.params.max_log_ratio
    shaped_log_ratio = (
        log_ratio if algorithm.base.log_ratio is token_log_ratio else shaped.log_ratio.detach()
    )
    sums = metrics.ratio_sums(log_ratio, log_ratio.exp(), shaped_log_ratio, weight, limit)
    sums |= metrics.clip_sums(judged, advantages, columns.low, columns.high, weight)
    per_token = torch.stack([sums[k] for k in PER_TOKEN.values()]) / global_valid_toks
    per_sequence = torch.stack([sums[k] for k in PER_SEQUENCE.values()]) / global_valid_seqs
    values = torch.cat((per_token, per_sequence)).tolist()  # one transfer
    return dict(zip((*PER_TOKEN, *PER_SEQUENCE), values, strict=True))


@torch.no_grad()
def _approx_entropy(logprobs: Tensor, data: Any, mask: Tensor, global_valid_toks: Tensor) -> float:
    """NeMo-RL's metric, of the true log-probs: -mean (pi / pi_gen) log pi."""
    terms = (logprobs - data["generation_logprobs"][:, 1:]).exp_().mul_(logprobs)
    return float(-terms.where(mask, 0.0).sum() / global_valid_toks)


def _probs_ratio(log_ratio: Tensor, mask: Tensor, mean: float) -> dict[str, float]:
    """NeMo-RL's metrics of the ratio; it leaves infinities out where a micro-batch has no
    tokens."""
    ratio = log_ratio.exp()
    low = float(ratio.where(mask, torch.inf).min())
    high = float(ratio.where(mask, -torch.inf).max())
    names = ("probs_ratio", "probs_ratio_clamped")
    return {
        k + suffix: value
        for k in names
        for suffix, value in (("", mean), ("_min", low), ("_max", high))
    }
