"""Group statistics, worked by hand, and the rule for flat groups."""

import math

import pytest
import torch
from batches import close

from nemo_algos.algorithms.core.groups import Groups, advantages

LABELS = [5, -2, 5, 9, 5, -2]
VALUES = [1.0, 10.0, 2.0, 7.0, 6.0, 30.0]


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def one_group(rewards, std="sample"):
    return advantages(tensor(rewards), Groups.of(torch.zeros(len(rewards), dtype=torch.long)), std)


def test_statistics_by_hand():
    """Groups, by label: -2 holds 10, 30; 5 holds 1, 2, 6; 9 holds 7."""
    groups, values = Groups.of(torch.tensor(LABELS)), tensor(VALUES)
    assert groups.count.tolist() == [2, 3, 1]
    assert groups.index.tolist() == [1, 0, 1, 2, 1, 0]
    assert groups.sum(values).tolist() == [40, 9, 7]
    assert groups.mean(values).tolist() == [20, 3, 7]
    assert groups.max(values).tolist() == [30, 6, 7]
    assert groups.max(-values).tolist() == [-10, -1, -7]
    close(groups.std(values), tensor([10, math.sqrt(14 / 3), 0]))
    close(groups.std(values, dof=1), tensor([math.sqrt(200), math.sqrt(7), 0]))
    assert groups.flat(values).tolist() == [False, False, True]


def test_two_passes_keep_small_differences_of_large_rewards():
    got = one_group([1e6 + 1, 1e6 + 2, 1e6 + 6.0, 1e6 + 3])  # tolerance 1, one at the mean
    close(got, tensor([-2, 0, 3, 0]) / (math.sqrt(14 / 3) + 1e-6), 1e-9)


@pytest.mark.parametrize(
    "rewards",
    [
        [3.0],
        [0.1] * 7,
        [0.5, 0.5 + 1e-6],
        [0.0, 1e-6],
        [1e6, 1e6 + 1],
        [-1e6, -1e6 - 1],
        [0.0, -0.0],
    ],
)
@pytest.mark.parametrize("std", ["sample", "population", "none"])
def test_flat_groups_have_advantage_exactly_0(rewards, std):
    got = one_group(rewards, std)
    assert (got == 0).all() and not got.signbit().any()


def test_tolerance_is_the_groups_own():
    """A large reward in one group does not flatten another."""
    labels, rewards = torch.tensor([0, 0, 1, 1]), tensor([1e9, 2e9, 0.0, 1e-3])
    assert Groups.of(labels).flat(rewards).tolist() == [False, False]
    close(Groups.of(labels).tolerance(rewards), tensor([2e3, 1e-6]))
