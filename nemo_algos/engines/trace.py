"""Token traces: what a step did to single tokens, for the report's heat map.

N responses of at most S tokens. One line of trace.jsonl per response, with a number per token: the
entropy of the sampling policy (nats; null where nobody knows it), the method's advantage, the ratio
after the step's updates that the method's bounds judge (of the token, or of its sequence), the
bounds low and high (null without clipping), and `cut`.

A token is cut where the surrogate's gradient is zero though its advantage A' is not: asked of the
surrogate itself, by autograd, so that no method's rule is written twice.
"""

from typing import Any

import torch
from torch import Tensor

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.core.surrogate import difference
from nemo_algos.algorithms.kernel import Signals
from nemo_algos.algorithms.shapes import Mask, PerToken

FILE = "trace.jsonl"
RESPONSES = 8  # of a prompt
DIGITS = 6


def due(step: int, period: int, last: int | None) -> bool:
    """Whether a step is traced: the first, the last, and every period-th."""
    return bool(period) and (step in (1, last) or step % period == 0)


def traced_rows(group: Tensor, prompts: int) -> Tensor:
    """[N]: up to 8 responses to each of the first prompts; group [B], any number of each."""
    first = list(dict.fromkeys(group.tolist()))[:prompts]
    return torch.cat([(group == p).nonzero().flatten()[:RESPONSES] for p in first])


def tokens_of(
    algorithm: Algorithm, mask: Mask, old_logprobs: PerToken, signals: Signals, logprobs: PerToken
) -> dict[str, Tensor]:
    """advantage, ratio, low, high and cut, [N,S]; logprobs [N,S]: log pi after the updates."""
    logprobs = logprobs.detach().requires_grad_()
    limit = algorithm.base.params.max_log_ratio
    log_ratio = difference(logprobs, old_logprobs, mask, limit)
    shaped = algorithm.transform(log_ratio, mask, signals)
    terms = algorithm.surrogate(shaped, logprobs, mask)
    (gradient,) = torch.autograd.grad(terms.sum(), logprobs)
    values = {
        "advantage": signals.advantages.to(log_ratio.dtype),
        "ratio": shaped.clip_log_ratio.detach().exp(),
        "low": 1 - torch.as_tensor(shaped.low, dtype=log_ratio.dtype),
        "high": 1 + torch.as_tensor(shaped.high, dtype=log_ratio.dtype),
        "cut": (gradient == 0) & (shaped.clip_sign != 0),
    }
    return {name: x.expand(mask.shape) for name, x in values.items()}


def line(
    about: dict[str, Any], mask: Mask, entropy: Tensor | None, tokens: dict[str, Tensor]
) -> dict[str, Any]:
    """A response's line; mask, entropy and tokens (see tokens_of) [S]; about: the other keys."""
    values: dict[str, Any] = {"entropy": None if entropy is None else _numbers(entropy[mask])}
    values |= {name: _numbers(x[mask]) for name, x in tokens.items()}
    for bound in ("low", "high"):
        if not tokens[bound].isfinite().all():
            values[bound] = None
    return about | values


def _numbers(values: Tensor) -> list[Any]:
    plain = values.tolist()
    if values.dtype == torch.bool:
        return plain
    return [float(f"{x:.{DIGITS}g}") for x in plain]
