"""Batches do not see one another, the digits do not depend on threads, and a wrong method shows."""

from dataclasses import replace

import pytest
import torch

from nemo_algos import METHODS, Signal, group_advantages, no_bounds
from nemo_algos.lab.atlas import run
from nemo_algos.lab.atlas.design import ARMS, Cell
from nemo_algos.lab.atlas.groups import Batches, at_random, every
from nemo_algos.lab.atlas.measure import algorithm_of, measured, policies
from nemo_algos.lab.atlas.updates import directions, parts
from nemo_algos.lab.atlas.world import WORLDS

WORLD = WORLDS["small"]()


@pytest.mark.parametrize("arm", ARMS)
def test_a_batchs_update_is_its_own(arm):
    """Whatever else is computed with it: of all batches, and of some alone."""
    algorithm = algorithm_of(ARMS[arm], "none")
    found = policies(WORLD, Cell(sampler="noise 0.3"), algorithm)
    p = WORLD.answers(found.sampler).exp()
    answers, warm = every(p[0], 3).answers, at_random(p, 9, 3, seed=0)
    moved = torch.randn(len(answers), *found.trainer.shape, dtype=torch.float64) / 3

    def updates(rows):
        batches = Batches(answers[rows], torch.ones(len(answers[rows])), answers[rows, 0, 0])
        split = [*parts(algorithm, WORLD, found, batches, warm)]
        return directions(algorithm, WORLD, answers[rows], split, (found.trainer + moved)[rows])

    whole = updates(slice(None))
    assert float(whole.abs().max()) > 1e-6
    for rows in (slice(3, 4), slice(5, 60, 7)):
        torch.testing.assert_close(updates(rows), whole[rows], rtol=1e-10, atol=1e-13)


def test_the_digits_do_not_depend_on_threads():
    """Of the whole cell, as floats."""
    before = torch.get_num_threads()
    found = []
    for threads in (4, 1):
        torch.set_num_threads(threads)
        found.append(run.compute("rloo", Cell(group=4)))
        assert torch.get_num_threads() == 1
    torch.set_num_threads(before)
    assert found[0] == found[1]


def negative(rollouts, params):
    return Signal(-group_advantages(rollouts, params).value)


def undivided(rollouts, params):
    """What a sequence mean divides by, multiplied back."""
    return Signal(group_advantages(rollouts, params).value * rollouts.lengths)


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
    cell, rate = Cell(group=4), run.rate("grpo")
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
