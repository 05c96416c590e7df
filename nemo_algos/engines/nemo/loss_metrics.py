"""The metrics of a micro-batch in NeMo-RL's loss: one vector, one transfer, nothing to wait for."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.core import metrics
from nemo_algos.algorithms.kernel import Shaped, token_log_ratio
from nemo_algos.algorithms.shapes import Mask, PerToken

# Shares of all valid tokens (sequences), the counts that a worker knows: NeMo-RL adds them up over
# micro-batches and ranks, and `by_sign` divides at the driver.
OWN = {k: v for k, v in metrics.MEANS.items() if k.startswith(("clip/", "ratio/", "kl/old"))}
SIGNS = {"positive": "clip/positive", "negative": "clip/negative"}
PER_TOKEN = {name: total for name, (total, count) in OWN.items() if count != "sequences"}
PER_TOKEN |= {name: sign for sign, name in SIGNS.items()}
PER_SEQUENCE = {name: total for name, (total, count) in OWN.items() if count == "sequences"}
REJECTED = "correction/rejected_tokens"
PROBS_RATIO = [f"probs_ratio{c}{e}" for c in ("", "_clamped") for e in ("", "_min", "_max")]


class MicroBatch(NamedTuple):
    """A micro-batch as the method sees it; tensors are [B,S-1], except in shaped and zero.

    gap: log pi - prev; finite: where it is, or off the mask; log_ratio: gap within +-limit, 0 off
    the mask; zero: where an advantage or a weight of 0 contributes 0, [B,1] or [B,S-1]; factor: of
    the rollout correction, None: 1.
    """

    logprobs: PerToken
    prev: Tensor
    weight: Tensor
    mask: Mask
    gap: Tensor
    finite: Tensor
    limit: float
    log_ratio: PerToken
    shaped: Shaped
    zero: Tensor
    factor: Tensor | None


class Sent(NamedTuple):
    """Numbers on their way from the device; done: the CUDA event after them, or None."""

    names: list[str]
    values: Tensor
    done: Any

    def wait(self) -> dict[str, float]:
        if self.done is not None:
            self.done.synchronize()
        return dict(zip(self.names, self.values.tolist(), strict=True))


@torch.no_grad()
def send(
    algorithm: Algorithm,
    batch: MicroBatch,
    data: Any,
    global_valid_seqs: Tensor,
    global_valid_toks: Tensor,
    stock: bool,
    terms: dict[str, Tensor],
) -> Sent:
    """The metrics of a micro-batch, not waited for.

    stock: NeMo-RL reports their entropy itself; terms: shares of the loss by name.
    """
    sums = _sums(algorithm, batch)
    # a correction may reject a whole optimizer batch
    global_valid_toks = global_valid_toks.clamp(min=1)
    global_valid_seqs = global_valid_seqs.clamp(min=1)
    per_token = torch.stack([sums[k] for k in PER_TOKEN.values()]) / global_valid_toks
    per_sequence = torch.stack([sums[k] for k in PER_SEQUENCE.values()]) / global_valid_seqs
    names = [*PER_TOKEN, *PER_SEQUENCE]
    values = [per_token, per_sequence]
    if not stock:
        names.append("approx_entropy")
        values.append(_approx_entropy(batch, data)[None] / global_valid_toks)
    if algorithm.correction.bypass_mode and batch.factor is not None:
        names.append(REJECTED)
        values.append((batch.mask & (batch.factor == 0)).sum()[None] / global_valid_toks)
    if algorithm.base.form == "logprob":  # NeMo-RL's ratio is then the log-prob
        names += PROBS_RATIO
        values += 2 * [_probs_ratio(batch, sums["ratio"] / global_valid_toks)]
    names += terms
    values += [share.detach()[None].to(per_token) for share in terms.values()]
    vector = torch.cat(values)
    host = vector.to("cpu", non_blocking=True)
    done = torch.cuda.current_stream(vector.device).record_event() if vector.is_cuda else None
    return Sent(names, host, done)


def by_sign(shares: dict[str, list[float]]) -> dict[str, list[float]]:
    """A step's metrics, clips by sign as shares of that sign's tokens, like the embedded engine."""
    merged = {}
    for name, values in shares.items():
        if name not in SIGNS.values():
            merged[name] = values
    for name, (_, sign) in OWN.items():
        if sign not in SIGNS or name not in merged:
            continue
        total = sum(merged.pop(name))
        count = sum(shares.get(SIGNS[sign], []))
        if count > 0:
            merged[name] = [total / count]
    return merged


def _sums(algorithm: Algorithm, batch: MicroBatch) -> dict[str, Tensor]:
    log_ratio = batch.log_ratio.detach()
    shaped = batch.shaped
    weight = batch.weight.to(log_ratio.dtype)
    one_per_token = algorithm.base.method.log_ratio is token_log_ratio
    shaped_log_ratio = log_ratio if one_per_token else shaped.log_ratio.detach()
    sums = metrics.ratio_sums(log_ratio, log_ratio.exp(), shaped_log_ratio, weight, batch.limit)
    compared = shaped.clip_log_ratio.detach()
    return sums | metrics.clip_sums(compared, shaped.clip_sign, shaped.low, shaped.high, weight)


def _approx_entropy(batch: MicroBatch, data: Any) -> Tensor:
    """NeMo-RL's metric, of the true log-probs: the sum of -(pi / pi_gen) log pi."""
    logprobs = batch.logprobs.detach()
    terms = (logprobs - data["generation_logprobs"][:, 1:]).exp_().mul_(logprobs)
    return -terms.where(batch.mask, 0.0).sum()


def _probs_ratio(batch: MicroBatch, mean: Tensor) -> Tensor:
    """Mean, smallest and largest ratio, [3]; infinite without tokens, which NeMo-RL leaves out."""
    ratio = batch.log_ratio.exp()
    least = F.pad(ratio.where(batch.mask, torch.inf).flatten(), (0, 1), value=torch.inf).min()
    most = F.pad(ratio.where(batch.mask, -torch.inf).flatten(), (0, 1), value=-torch.inf).max()
    return torch.stack((mean, least, most))
