"""The one-process run: the whole model, plain log-softmax, autograd; and the batch that it makes.

8 sequences (2 groups x 4) of 16 positions, prompts of 4, responses of 5 to 12 tokens; pi_old is off
the policy by 0.2 nats a token, so that bounds bind.
"""

from typing import NamedTuple

import model
import torch
from torch import Tensor

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.rollouts import Rollouts

METHODS = ("etr", "quatro", "erpo", "apmpo")
REWARDS = (0.0, 1.0, 0.25, 0.0, 1.0, 0.5, 0.75, 0.0)
TEMPERATURE = 0.8
PROMPT = 4


class Oracle(NamedTuple):
    """What the whole model gives, in one process.

    weights, and grads by method: by name; tokens, logprobs, entropy [B,S]; clipped: tokens (by
    method) whose bound binds.
    """

    weights: dict[str, Tensor]
    tokens: Tensor
    rollouts: Rollouts
    logprobs: Tensor
    entropy: Tensor
    grads: dict[str, dict[str, Tensor]]
    clipped: dict[str, float]


def run() -> Oracle:
    whole = model.build(model.Layout())
    weights = model.draw(whole)
    model.load(whole, weights)
    tokens = torch.randint(model.VOCABULARY, (len(REWARDS), model.LENGTH), generator=_generator())
    logprobs, entropy = dense(whole, tokens)
    rollouts = _rollouts(logprobs.detach(), entropy.detach())
    grads, clipped = {}, {}
    for name in METHODS:
        grads[name], clipped[name] = _gradient(name, whole, logprobs, rollouts)
    return Oracle(weights, tokens, rollouts, logprobs.detach(), entropy.detach(), grads, clipped)


def dense(whole: torch.nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [B,S] at the tokens that they are of; 0 at the first."""
    logits = whole(tokens, *inputs(tokens))[..., : model.VOCABULARY]
    scores = (logits[:, :-1] / TEMPERATURE).log_softmax(-1)
    chosen = scores.gather(-1, tokens[:, 1:, None])[..., 0]
    entropy = -(scores.exp() * scores).sum(-1)
    logprobs, entropy = (torch.nn.functional.pad(x, (1, 0)) for x in (chosen, entropy))
    return logprobs, entropy


def inputs(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Positions [B,S], and the causal mask [B,1,S,S], True where attention must not look."""
    size = tokens.shape[1]
    hidden = torch.ones(size, size, dtype=torch.bool).triu(1)
    return torch.arange(size).expand_as(tokens), hidden.expand(len(tokens), 1, size, size)


def _rollouts(logprobs: Tensor, entropy: Tensor) -> Rollouts:
    generator = _generator()

    def near(values: Tensor) -> Tensor:
        return (values + 0.2 * torch.randn(values.shape, generator=generator)).clamp(max=0)

    lengths = torch.randint(5, 13, (len(REWARDS), 1), generator=generator)
    columns = torch.arange(model.LENGTH)
    return Rollouts(
        group=torch.arange(len(REWARDS)) // 4,
        rewards=torch.tensor(REWARDS),
        mask=(columns >= PROMPT) & (columns < PROMPT + lengths),
        old_logprobs=near(logprobs),
        ref_logprobs=near(logprobs),
        entropy=entropy,
    )


def _gradient(
    name: str, whole: torch.nn.Module, logprobs: Tensor, rollouts: Rollouts
) -> tuple[dict[str, Tensor], float]:
    algorithm = build(name)
    counts, signals = Counts.of(rollouts.mask), algorithm.signals(rollouts)
    loss = policy_loss(algorithm, logprobs, rollouts, signals, counts)
    named = model.parameters(whole)
    grads = torch.autograd.grad(loss.value, list(named.values()), retain_graph=True)
    clipped = sum(float(v) for k, v in loss.stats.sums.items() if k.startswith("clipped"))
    return dict(zip(named, grads, strict=True)), clipped


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)
