"""Token traces: what a step did to single tokens, for the report's heat map.

N responses of at most S tokens. One line of trace.jsonl per response, with a number per token: the
entropy of the sampling policy (nats), the method's advantage, the ratio after the step's updates
that the method's bounds judge (of the token, or of its sequence), the bounds low and high (null
without clipping), and `cut`.

A token is cut where the surrogate's gradient is zero though its advantage A' is not: asked of the
surrogate itself, by autograd, so that no method's rule is written twice.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.core.surrogate import difference
from nemo_algos.algorithms.kernel import Signals
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines.local.experience import Experience

RESPONSES = 8  # of a prompt
DIGITS = 6


def traced_rows(group: Tensor, prompts: int) -> Tensor:
    """[N]: up to 8 responses to each of the first prompts; group [B] as in Experience."""
    return torch.cat([(group == p).nonzero().flatten()[:RESPONSES] for p in range(prompts)])


def tokens_of(
    algorithm: Algorithm, rollouts: Rollouts, signals: Signals, logprobs: Tensor
) -> dict[str, Tensor]:
    """advantage, ratio, low, high and cut, [N,S]; logprobs [N,S]: log pi after the updates."""
    logprobs, mask = logprobs.detach().requires_grad_(), rollouts.mask
    limit = algorithm.base.params.max_log_ratio
    log_ratio = difference(logprobs, rollouts.old_logprobs, mask, limit)
    shaped = algorithm.shape(log_ratio, mask, signals)
    terms = algorithm.surrogate(shaped, logprobs, mask)
    (gradient,) = torch.autograd.grad(terms.sum(), logprobs)
    values = {
        "advantage": signals.advantages.to(log_ratio.dtype),
        "ratio": shaped.judged.detach().exp(),
        "low": 1 - torch.as_tensor(shaped.low, dtype=log_ratio.dtype),
        "high": 1 + torch.as_tensor(shaped.high, dtype=log_ratio.dtype),
        "cut": (gradient == 0) & (shaped.side != 0),
    }
    return {name: x.expand(mask.shape) for name, x in values.items()}


def lines(
    step: int,
    rows: Tensor,
    experience: Experience,
    rollouts: Rollouts,
    tokens: dict[str, Tensor],
    text: Callable[[list[int]], str],
) -> list[dict[str, Any]]:
    """The lines of the responses `rows` [N]; tokens: see tokens_of; text: of token ids."""
    out = []
    for i, row in enumerate(rows.tolist()):
        mask, group = experience.mask[row], int(experience.group[row])
        prompt = experience.prompts[group][experience.prompt_mask[group]]
        values = {name: _numbers(x[i][mask]) for name, x in tokens.items()}
        bounds = {k: values[k] if tokens[k][i].isfinite().all() else None for k in ("low", "high")}
        written = {
            "step": step,
            "group": group,
            "prompt": text(prompt.tolist()),
            "tokens": [text([token]) for token in experience.tokens[row][mask].tolist()],
            "reward": float(rollouts.rewards[row]),
            "entropy": _numbers(experience.entropy[row][mask]),
        }
        out.append(written | values | bounds)
    return out


def _numbers(values: Tensor) -> list[Any]:
    plain = values.tolist()
    return plain if values.dtype == torch.bool else [float(f"{x:.{DIGITS}g}") for x in plain]
