"""Drawn batches have the exact mean, digits do not depend on threads, a wrong method shows."""

from dataclasses import replace

import pytest
import table
import torch
from cells import ARMS, Cell
from expected import directions, parts
from groups import drawn, every
from measure import _error, algorithm_of, measured, policies, sampled
from world import WORLDS

from nemo_algos import METHODS, DriverOutput, group_advantages, no_bounds

WORLD = WORLDS["small"]()


def mean_update(arm, batches):
    """The expected update [N,V] and each batch's."""
    algorithm = algorithm_of(ARMS[arm], "none")
    found = policies(WORLD, Cell(), algorithm)
    split = [*parts(algorithm, WORLD, found, batches, batches.answers[:3])]
    start = found.trainer.expand(len(batches.weight), *found.trainer.shape)
    each = directions(algorithm, WORLD, batches.answers, split, start)[:, 0]
    return (batches.weight[:, None, None] * each).sum(0), each


@pytest.mark.parametrize("arm", ["grpo", "quatro", "erpo"])
def test_drawn_batches_have_the_exact_mean_within_their_error(arm):
    p = WORLD.answers(WORLD.logits(0.3)).exp()
    exact, _ = mean_update(arm, every(p, 4))
    batches = drawn(p, WORLD.right, 4, 400, seed=5)
    assert float(batches.weight.sum()) == pytest.approx(1)
    found, each = mean_update(arm, batches)
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
