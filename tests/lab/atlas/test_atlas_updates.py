"""Batches do not see one another, the digits do not depend on threads, and a wrong method shows."""

import pytest
import torch

from nemo_algos.lab.atlas.design import ARMS, Cell
from nemo_algos.lab.atlas.groups import Batches, at_random, every
from nemo_algos.lab.atlas.measure import algorithm_of, policies
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
