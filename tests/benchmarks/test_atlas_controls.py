"""Expected updates against closed forms, written from textbooks and papers alone.

In a world whose answers all have D tokens a sequence mean and a token mean are 1 / D of the sum
over a response's tokens. p: the pass rate, q = 1 - p, G: the group's size, g = grad p.

    REINFORCE with a baseline b   E = g                                Williams 1992
    RLOO                          E = g                                Kool et al. 2019
    the group's mean as baseline  E = g (G - 1) / G
    MaxRL                         E = g (1 - q^(G-1)) / p              its truncated likelihood
    GRPO                          E = g E_K[s(K)] / (p q), s(K) the deviation of K right of G
"""

import math

import pytest
import torch
from expected import Policies, directions, parts
from groups import every
from world import WORLDS, full, grown, nothing

from nemo_algos import build

DEPTH = 3
EVEN = grown(2, full(2, DEPTH), nothing, {(1, 0, 1): 3, (0, 1, 1): 1})


def expected(method, p, size, world=EVEN):
    """The library's expected update and the true gradient, [N,V] each."""
    algorithm = build(method)
    logits = world.logits(p)[None]
    batches = every(world.answers(logits[0]).exp(), size)
    warm = batches.answers[:3]
    found = [*parts(algorithm, world, Policies(logits, logits, logits), batches, warm)]
    start = logits.expand(len(batches.weight), *logits.shape)
    each = directions(algorithm, world, batches.answers, found, start)[:, 0]
    return (batches.weight[:, None, None] * each).sum(0), world.gradient(logits[0])


def by_hand(world, logits):
    """grad p by the score function: sum of pi(y) R(y) (1 at the tokens drawn - pi)."""
    probabilities, gradient = logits.softmax(-1), torch.zeros_like(logits)
    for node, token, mask, reward in zip(
        world.node.tolist(), world.token.tolist(), world.mask.tolist(), world.rewards, strict=True
    ):
        steps = [(n, v) for n, v, there in zip(node, token, mask, strict=True) if there]
        chance = math.prod(float(probabilities[n, v]) for n, v in steps)
        for n, v in steps:
            gradient[n] -= chance * reward * probabilities[n]
            gradient[n, v] += chance * reward
    return gradient


@pytest.mark.parametrize("name", WORLDS)
def test_the_true_gradient_is_the_score_functions(name):
    world = WORLDS[name]()
    logits = world.logits(0.2)
    torch.testing.assert_close(world.gradient(logits), by_hand(world, logits), rtol=0, atol=1e-12)
    assert float(world.answers(logits).exp().sum()) == pytest.approx(1, abs=1e-12)
    assert float(world.answers(logits).exp()[world.right].sum()) == pytest.approx(0.2, abs=1e-12)


def grpo_weight(p, size):
    """E_K of the mean right less the mean wrong advantage's weight; 1e-6 is GRPO's own epsilon."""
    total = 0.0
    for k in range(1, size):
        share = k / size
        deviation = math.sqrt(size / (size - 1) * share * (1 - share))
        chance = math.comb(size, k) * p**k * (1 - p) ** (size - k)
        total += chance * share * (1 - share) / (deviation + 1e-6)
    return total / (p * (1 - p))


CLOSED = {
    "ema_baseline": lambda p, size: 1.0,
    "rloo": lambda p, size: 1.0,
    "gpg": lambda p, size: (size - 1) / size,
    "maxrl": lambda p, size: (1 - (1 - p) ** (size - 1)) / p,
    "grpo": grpo_weight,
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("p", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("method", CLOSED)
def test_closed_forms(method, p, size):
    found, gradient = expected(method, p, size)
    want = CLOSED[method](p, size) * gradient / DEPTH
    torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-10)
    assert float(want.abs().max()) > 1e-4


def test_every_group_is_there_once():
    p = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
    batches = every(p, 4)
    assert len(batches.weight) == math.comb(3 + 4 - 1, 4)
    assert float(batches.weight.sum()) == pytest.approx(1, abs=1e-12)
    counts = torch.nn.functional.one_hot(batches.answers[:, 0], 4).sum(1).double()
    torch.testing.assert_close((batches.weight[:, None] * counts).sum(0), 4 * p)
