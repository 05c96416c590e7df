"""Log-probs and entropies of a vocabulary cut over ranks equal a log-softmax of the whole.

From logits and from hidden states: values, and gradients of both at once.

123 rows of 128 are tokens; of 70 and 4 ranks, one rank holds padding alone.
"""

from typing import Any, NamedTuple

import pytest
import ranks
import torch
import torch.distributed as dist
from parallel import apart
from torch import Tensor

from nemo_algos.algorithms.core import entropy, linear_entropy

ROWS, TOKENS, HIDDEN, TEMPERATURE = 128, (3, 11), 32, 0.7
CASES = [(2, 123), (4, 123), (4, 70)]  # ranks, real vocabulary
VALUE, GRADIENT = 2e-5, 1e-4


class Whole(NamedTuple):
    """hidden [..., H], weight [V,H], tokens [...]; of log-probs and entropies [...]: cotangents."""

    hidden: Tensor
    weight: Tensor
    tokens: Tensor
    cotangents: tuple[Tensor, Tensor]

    def logits(self) -> Tensor:
        return self.hidden @ self.weight.T


def whole(vocabulary: int) -> Whole:
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    tokens = torch.randint(vocabulary, TOKENS, generator=generator)
    cotangents = draw(*TOKENS), draw(*TOKENS)
    return Whole(draw(*TOKENS, HIDDEN), 0.4 * draw(ROWS, HIDDEN), tokens, cotangents)


def differentiate(values: Any, given: Whole, inputs: list[Tensor]) -> list[Tensor]:
    """Log-probs, entropies, and the gradients of the inputs."""
    cotangents = [c.to(v) for c, v in zip(given.cotangents, values, strict=True)]
    return [*(v.detach() for v in values), *torch.autograd.grad(values, inputs, cotangents)]


def dense(given: Whole, logits: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    scores = (logits[..., :vocabulary] / TEMPERATURE).log_softmax(-1)
    chosen = scores.gather(-1, given.tokens[..., None])[..., 0]
    return chosen, -(scores.exp() * scores).sum(-1)


def against(got: list[Tensor], wanted: list[Tensor], own: list[Tensor]) -> list[float]:
    """Errors of the values, and of a rank's own gradients, relative to the largest of all ranks."""
    values = [apart(g, w) for g, w in zip(got[:2], wanted[:2], strict=True)]
    largest = [float(w.abs().max()) for w in wanted[2:]]
    return values + [apart(g, o) / m for g, o, m in zip(got[2:], own, largest, strict=True)]


def from_logits(vocabulary: int) -> list[float]:
    """Errors of a rank: log-probs, entropies, gradient of its logits (relative)."""
    given = whole(vocabulary)
    return of_logits(given, given.logits(), vocabulary)


def from_far_logits(vocabulary: int) -> list[float]:
    """The same where e^x of one shard overflows if another's maximum is taken off."""
    given = whole(vocabulary)
    logits = given.logits().double()
    logits[0, :, vocabulary - 1] += 1000
    return of_logits(given, logits, vocabulary)


def of_logits(given: Whole, logits: Tensor, vocabulary: int) -> list[float]:
    group = dist.group.WORLD
    logits.requires_grad_()
    wanted = differentiate(dense(given, logits, vocabulary), given, [logits])
    own = logits.detach().chunk(group.size(), -1)[group.rank()].requires_grad_()
    values = entropy.token_logprobs_and_entropy(own, given.tokens, TEMPERATURE, group, vocabulary)
    got = differentiate(values, given, [own])
    return against(got, wanted, [wanted[2].chunk(group.size(), -1)[group.rank()]])


def from_hidden(vocabulary: int) -> list[float]:
    """A rank's errors: log-probs, entropies, gradients of hidden and of its rows of weight."""
    given, group = whole(vocabulary), dist.group.WORLD
    inputs = [given.hidden.requires_grad_(), given.weight.requires_grad_()]
    wanted = differentiate(dense(given, given.logits(), vocabulary), given, inputs)
    own = given.weight.detach().chunk(group.size())[group.rank()].requires_grad_()
    linear_entropy.CHUNK = 4 * len(own)  # 4 positions at a time
    values = linear_entropy.token_logprobs_and_entropy_from_hidden(
        given.hidden, own, given.tokens, TEMPERATURE, group, vocabulary
    )
    got = differentiate(values, given, [given.hidden, own])
    return against(got, wanted, [wanted[2], wanted[3].chunk(group.size())[group.rank()]])


def errors(function: Any, size: int, vocabulary: int) -> list[float]:
    """The worst rank's."""
    columns = zip(*ranks.run(size, lambda: function(vocabulary)), strict=True)
    return [max(column) for column in columns]


@pytest.mark.parametrize(("size", "vocabulary"), CASES)
@pytest.mark.parametrize("function", [from_logits, from_far_logits, from_hidden])
def test_a_cut_vocabulary_equals_the_whole(function: Any, size: int, vocabulary: int) -> None:
    logprobs, entropies, *gradients = errors(function, size, vocabulary)
    assert logprobs < VALUE and entropies < VALUE and max(gradients) < GRADIENT
