"""Buckets and z-scores over packed tokens against plain loops."""

import statistics

import pytest
import torch
from batches import close

from nemo_algos.core.groups import Groups
from nemo_algos.core.tokens import Pools, unpack


def packed(lengths, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths), generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("buckets", [1, 2, 3, 7, 10, 16])
def test_bucket_of_token_j_is_jK_over_length(buckets):
    lengths = [*range(26), 0, 1000]
    groups = Groups.of(torch.arange(len(lengths)))
    pools = Pools.of_buckets(torch.tensor(lengths), groups, buckets)
    got = pools.spread(torch.arange(pools.number)).tolist()
    assert got == [g * buckets + j * buckets // n for g, n in enumerate(lengths) for j in range(n)]


def test_responses_of_a_group_share_its_buckets():
    groups = Groups.of(torch.tensor([7, 2, 7]))  # 2 is the first group, 7 the second
    pools = Pools.of_buckets(torch.tensor([3, 2, 4]), groups, 2)
    assert pools.spread(torch.arange(4)).tolist() == [2, 2, 3, 0, 1, 2, 2, 3, 3]


def test_moments_and_zscores_of_each_pool():
    lengths, labels = [4, 0, 3, 1, 5], [1, 0, 0, 2, 1]
    groups, values = Groups.of(torch.tensor(labels)), packed(lengths)
    pools = Pools.of_groups(torch.tensor(lengths), groups)
    ids = [g for g, n in zip(labels, lengths, strict=True) for _ in range(n)]
    members = [[float(v) for v, i in zip(values, ids, strict=True) if i == g] for g in range(3)]
    close(pools.mean(values), torch.tensor([statistics.fmean(m) for m in members]).double(), 1e-7)
    means, stds = [[f(m) for m in members] for f in (statistics.fmean, statistics.pstdev)]
    close(pools.std(values), torch.tensor(stds, dtype=torch.float64))
    want = [(float(v) - means[i]) / (stds[i] + 1e-6) for v, i in zip(values, ids, strict=True)]
    close(pools.zscore(values), torch.tensor(want, dtype=torch.float64))


def test_zscore_in_float32_keeps_a_small_spread_on_a_large_offset():
    """Two passes: 100 + noise of 0.01."""
    values = (100 + 0.01 * packed([1000])).float()
    pools = Pools.of_groups(torch.tensor([1000]), Groups.of(torch.tensor([0])))
    exact = values.double()
    want = (exact - exact.mean()) / (exact.std(correction=0) + 1e-6)
    close(pools.zscore(values.clone()).double(), want, 1e-2)


def test_constant_and_empty_pools_are_0():
    pools = Pools.of_groups(torch.tensor([3, 0]), Groups.of(torch.tensor([0, 1])))
    values = torch.full((3,), 0.1, dtype=torch.float64)
    close(pools.std(values), 0.0, 1e-15)
    close(pools.zscore(values), 0.0, 1e-9)
    assert pools.mean(values)[1] == 0


def test_unpack_is_the_inverse_of_selection():
    mask = torch.rand(5, 9, generator=torch.Generator().manual_seed(0)) < 0.5
    values = packed([int(mask.sum())])
    wide = unpack(values, mask)
    assert (wide[mask] == values).all() and (wide[~mask] == 0).all()
