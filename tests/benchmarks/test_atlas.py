"""Expected updates against closed forms and drawn batches; a wrong method shows.

The closed forms are written from textbooks and papers alone. In a world whose answers all have D
tokens a sequence mean and a token mean are 1 / D of the sum over a response's tokens. p: the pass
rate, q = 1 - p, G: the group's size, g = grad p.

    REINFORCE with a baseline b   E = g                                Williams 1992
    RLOO                          E = g                                Kool et al. 2019
    the group's mean as baseline  E = g (G - 1) / G
    MaxRL                         E = g (1 - q^(G-1)) / p              its truncated likelihood
    GRPO                          E = g E_K[s(K)] / (p q), s(K) the deviation of K right of G
"""

import math
from dataclasses import replace

import pytest
import table
import torch
from cells import ARMS, Cell
from expected import Policies, directions, parts
from groups import drawn, every
from measure import _error, algorithm_of, measured, policies, sampled
from world import WORLDS, full, grown, nothing

from nemo_algos import METHODS, DriverOutput, build, group_advantages, no_bounds

DEPTH = 3
EVEN = grown(2, full(2, DEPTH), nothing, {(1, 0, 1): 3, (0, 1, 1): 1})


def mean_update(algorithm, world, policies, batches):
    """The expected update [N,V], and each batch's."""
    found = [*parts(algorithm, world, policies, batches, batches.answers[:3])]
    start = policies.trainer.expand(len(batches.weight), *policies.trainer.shape)
    each = directions(algorithm, world, batches.answers, found, start)[:, 0]
    return (batches.weight[:, None, None] * each).sum(0), each


def expected(method, p, size, world=EVEN):
    """The library's expected update and the true gradient, [N,V] each."""
    logits = world.logits(p)[None]
    batches = every(world.answers(logits[0]).exp(), size)
    found, _ = mean_update(build(method), world, Policies(logits, logits, logits), batches)
    return found, world.gradient(logits[0])


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


WORLD = WORLDS["small"]()


@pytest.mark.parametrize("arm", ["grpo", "quatro", "erpo"])
def test_drawn_batches_have_the_exact_mean_within_their_error(arm):
    p = WORLD.answers(WORLD.logits(0.3)).exp()
    algorithm = algorithm_of(ARMS[arm], "none")
    of_cell = policies(WORLD, Cell(), algorithm)
    exact, _ = mean_update(algorithm, WORLD, of_cell, every(p, 4))
    batches = drawn(p, WORLD.right, 4, 400, seed=5)
    assert float(batches.weight.sum()) == pytest.approx(1)
    found, each = mean_update(algorithm, WORLD, of_cell, batches)
    error, off = _error(batches, each.flatten(1)), float((found - exact).norm())
    assert error / 4 < off < 3 * error < 0.25 * float(exact.norm())


def test_a_top_p_sampler_keeps_the_likeliest():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).log()
    kept = sampled(WORLD, logits, "top-p 0.9").softmax(-1)
    torch.testing.assert_close(kept[0, :3] * 0.95, logits.exp()[0, :3])
    assert kept[0, 3] == 0


def test_a_stale_sampler_is_behind_by_the_nats_of_its_versions():
    now = WORLD.logits(0.3)
    before = sampled(WORLD, now, "stale 1")
    p, q = WORLD.answers(before), WORLD.answers(now)
    assert float((q.exp() * (q - p)).sum()) == pytest.approx(1e-4, rel=0.05)
    assert WORLD.reward(before) < WORLD.reward(now)


def test_the_digits_do_not_depend_on_threads():
    """Of the whole cell, as floats."""
    before = torch.get_num_threads()
    found = []
    for threads in (4, 1):
        torch.set_num_threads(threads)
        found.append(table.compute("rloo", Cell(group=4)))
        assert torch.get_num_threads() == 1
    torch.set_num_threads(before)
    assert found[0] == found[1]


def negative(rollouts, params):
    return DriverOutput(-group_advantages(rollouts, params).value)


def undivided(rollouts, params):
    """What a sequence mean divides by, multiplied back."""
    return DriverOutput(group_advantages(rollouts, params).value * rollouts.lengths)


def wrong_side(log_ratio, mask, signals, params):
    """The gradient is cut where the policy has moved against the advantage."""
    A, ratio = signals.advantages, log_ratio.exp()
    return A.where((A > 0) & (ratio >= 0.8) | (A < 0) & (ratio <= 1.2), 0.0)


GRPO = METHODS["grpo"]
PLANTED = {
    "sign": replace(GRPO, name="sign", stock=False, advantages=negative),
    "length": replace(GRPO, name="length", stock=False, advantages=undivided),
    "side": replace(
        GRPO, name="side", stock=False, reweight=wrong_side, constant_bounds=no_bounds, clips=None
    ),
}


def test_a_wrong_method_has_another_fingerprint():
    cell, rate = Cell(group=4), table.rate("grpo")
    blocks = {"grpo": {"name": "grpo"}} | {k: {"name": method} for k, method in PLANTED.items()}
    found = {k: {r["update"]: r for r in measured(b, cell, rate)} for k, b in blocks.items()}
    right, turned = found["grpo"], found["sign"]
    assert 20 < right[1]["angle"] < 30 and right[10]["gain"] > 0
    assert turned[1]["angle"] == pytest.approx(180 - right[1]["angle"])
    assert turned[10]["gain"] < -0.02
    assert found["length"][1]["angle"] < 1e-6
    assert found["length"][1]["size"] > 1.3 * right[1]["size"]
    assert found["side"][1] == right[1]
    assert found["side"][10]["kl"] > 2 * right[10]["kl"]
