"""Groups by hand, tokens against plain loops, and log M_p in exact arithmetic."""

import math
from decimal import Decimal, getcontext

import pytest
import torch
from batches import close, make

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.groups import Groups, advantages
from nemo_algos.algorithms.core.tokens import Pools, blocks, log_power_mean
from nemo_algos.algorithms.methods import erpo


def scattered(lengths, seed=0, positions=40):
    """A mask with holes and `lengths` tokens by row; values at every position, 0 off the mask."""
    rng = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(positions, *lengths))
    order = torch.rand(shape, generator=rng).argsort(1).argsort(1)
    mask = order < torch.tensor(lengths)[:, None]
    return mask, torch.randn(shape, generator=rng, dtype=torch.float64).where(mask, 0.0)


@pytest.mark.parametrize("buckets", [1, 2, 3, 7, 10, 16])
def test_bucket_of_token_j_is_jK_over_length(buckets):
    lengths = [*range(26), 0, 1000]
    mask, _ = scattered(lengths)
    pools = Pools.of_buckets(mask, Groups.of(torch.arange(len(lengths))), buckets)
    got = pools.spread(torch.arange(pools.number)).expand_as(mask)[mask].tolist()
    assert got == [g * buckets + j * buckets // n for g, n in enumerate(lengths) for j in range(n)]
    sizes = [sum(j * buckets // n == k for j in range(n)) for n in lengths for k in range(buckets)]
    assert pools.count.tolist() == sizes


def test_zscore_in_float32_keeps_a_small_spread_on_a_large_offset():
    """Two passes: 100 + noise of 0.01."""
    mask, noise = scattered([1000], positions=1200)
    values = (100 + 0.01 * noise).float().where(mask, 0.0)
    exact = values.double()[mask]
    want = (exact - exact.mean()) / (exact.std(correction=0) + 1e-6)
    pools = Pools.of_groups(mask, Groups.of(torch.tensor([0])))
    close(pools.zscore(values)[mask].double(), want, 1e-2)


@pytest.mark.parametrize("buckets", [1, 2, 3])
def test_constant_and_empty_pools_are_0(buckets):
    mask, _ = scattered([3, 1, 0])
    groups = Groups.of(torch.tensor([0, 1, 2]))
    pools = (
        Pools.of_buckets(mask, groups, buckets) if buckets > 1 else Pools.of_groups(mask, groups)
    )
    values = mask * torch.tensor(0.1, dtype=torch.float64)
    assert (pools.std(values) == 0).all() and (pools.zscore(values) == 0).all()
    close(pools.mean(values), 0.1 * (pools.count > 0).double())


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 7, 100])
def test_blocks_are_whole_groups(rows):
    groups = Groups.of(torch.tensor([4, 1, 4, 4, 2, 1, 4, 3]))
    cut = blocks(groups, rows)
    assert sorted(torch.cat(cut).tolist()) == list(range(8))
    labels = [set(groups.index[b].tolist()) for b in cut]
    assert sum(map(len, labels)) == 4  # no group in two blocks
    assert all(
        len(b) <= rows or len(s) == 1 or len(b) < rows + 4 for b, s in zip(cut, labels, strict=True)
    )


def test_erpo_does_not_depend_on_its_block(monkeypatch):
    batch = make()
    whole = build("erpo").signals(batch.rollouts)
    monkeypatch.setattr(erpo, "BLOCK", 1)
    parts = build("erpo").signals(batch.rollouts)
    close(parts.advantages, whole.advantages)
    assert parts.metrics == pytest.approx(whole.metrics, rel=1e-12)


def log_mean(values, p):
    """log( (mean u^p)^(1/p) ) in 60 digits."""
    getcontext().prec = 60
    power = Decimal(p)
    terms = [(power * Decimal(v)).exp() for v in values]
    return float((sum(terms) / len(terms)).ln() / power)


def ours(values, p, dtype=torch.float64):
    row = torch.tensor([[*values, 0.0]], dtype=dtype)  # a masked position holds 0
    mask = torch.tensor([[True] * len(values) + [False]])
    return log_power_mean(row, mask, torch.tensor([[p]], dtype=dtype))


ROWS = ([0.1, -0.2, 0.05], [0.3], [20.0, -20.0, 1.0], [1e-9, -1e-9, 3e-9], [5.0] * 4)


@pytest.mark.parametrize("p", [1e-12, 1e-9, 1e-6, 1e-4, 1e-2, 0.449, 1.0, 2.0])
@pytest.mark.parametrize("values", ROWS, ids=str)
def test_agrees_with_60_digits(values, p):
    close(ours(values, p), log_mean(values, p), 1e-13)
    close(ours(values, p, torch.float32).double(), log_mean(values, p), 5e-6)


@pytest.mark.parametrize("values", ROWS, ids=str)
@pytest.mark.parametrize("p", [0.0, 1e-320, 1e-300])
def test_at_0_it_is_the_geometric_mean(values, p):
    close(ours(values, p), sum(values) / len(values), 1e-14)


def test_empty_row_is_0():
    nothing = torch.zeros(1, 4, dtype=torch.bool)
    got = log_power_mean(torch.zeros(1, 4), nothing, torch.tensor([[0.5]]))
    assert got.tolist() == [[0.0]]


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
