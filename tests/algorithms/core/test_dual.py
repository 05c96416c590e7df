"""QUATRO's dual against its optimality conditions and a bisection of our own."""

import math

import pytest
import torch
from batches import close

from nemo_algos.algorithms.core.dual import kl_radius, solve
from nemo_algos.algorithms.core.groups import Groups


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def optimum(rewards, labels, delta, fraction=0.95):
    groups = Groups.of(labels)
    radius = kl_radius(rewards, groups, delta, fraction)
    A, lam = solve(rewards, groups, radius)
    return A, lam, radius, groups


def one(rewards, delta, fraction=0.95):
    """A [B], lambda and radius of a single group."""
    labels = torch.zeros(len(rewards), dtype=torch.long)
    A, lam, radius, _ = optimum(tensor(rewards), labels, delta, fraction)
    return A, float(lam), float(radius)


def by_bisection(rewards, radius):
    """A of one group: beta = 1 / lambda with KL(beta) = radius, by halving, in Python floats."""
    n, top = len(rewards), max(rewards)

    def tilted(beta):
        total = math.fsum(math.exp(beta * (r - top)) for r in rewards)
        return [beta * (r - top) - math.log(total / n) for r in rewards]

    def kl(beta):
        return math.fsum(math.exp(a) * a - math.expm1(a) for a in tilted(beta)) / n

    low, high = 0.0, 1.0
    while kl(high) < radius:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if kl(middle) < radius else (low, middle)
    return tilted(low), low


def satisfied(A, groups, radius, live, tolerance=1e-10):
    """mean(e^A A) = radius and mean(e^A) = 1 in the groups with a signal."""
    achieved, total = groups.mean(A.exp() * A - torch.expm1(A)), groups.mean(A.exp())
    assert bool(((achieved / radius - 1).abs()[live] <= tolerance).all())
    close(total[live], 1.0, 1e-12)


@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.01, 0.1, 5.0])
@pytest.mark.parametrize("scale", [1e-5, 1e-3, 1.0, 1e3, 1e6])
def test_conditions_of_the_optimum_for_random_rewards(delta, scale):
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 60, (500,), generator=rng)
    rewards = scale * torch.randn(500, generator=rng, dtype=torch.float64)
    A, lam, radius, groups = optimum(rewards, labels, delta)
    live = ~groups.flat(rewards)
    assert live.sum() > 50
    satisfied(A, groups, radius, live)
    assert (lam[live] > 0).all()
    log_mean = groups.mean(A.exp()).log()  # A = R / lambda - log mean exp(R / lambda)
    gaps = rewards / lam[groups.index] - A
    close(groups.std(gaps)[live] / groups.max(gaps.abs())[live].clamp(min=1), 0.0, 1e-10)
    close(log_mean[live], 0.0, 1e-12)


@pytest.mark.parametrize("gap", [2e-6, 1e-5, 1e-3])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.94])
def test_two_nearly_best_rewards(gap, share):
    """KL(beta) has a plateau: the worst is dropped first, at a far larger beta the second."""
    rewards = [1.0, 1.0 - gap, 0.0, 0.0, 0.0, 0.0]
    A, _, radius = one(rewards, share * math.log(6))
    want, _ = by_bisection(rewards, radius)
    close(A.exp(), tensor(want).exp(), 1e-8)
    satisfied(A, Groups.of(torch.zeros(6, dtype=torch.long)), tensor([radius]), slice(None), 1e-9)


def test_best_means_within_the_tolerance():
    near, _, radius = one([1.0, 1.0 - 5e-7, 0.0, 0.0], 5.0)
    assert radius == pytest.approx(0.95 * math.log(2), rel=1e-13)
    assert float(near[0]) == pytest.approx(float(near[1]), abs=1e-4)
    _, _, radius = one([1.0, 1.0 - 2e-6, 0.0, 0.0], 5.0)
    assert radius == pytest.approx(0.95 * math.log(4), rel=1e-13)


def test_flat_groups_are_exactly_0_beside_others():
    rewards = tensor([1.0, 0.0, 3.0, 3.0, 3.0 + 1e-6, -7.0])
    A, lam, radius, groups = optimum(rewards, torch.tensor([0, 0, 1, 1, 1, 2]), 0.01)
    assert A[2:].tolist() == [0, 0, 0, 0] and not A[2:].signbit().any()
    assert lam[1:].tolist() == [0, 0]
    satisfied(A, groups, radius, torch.tensor([True, False, False]))
