"""Buckets and z-scores over masked tokens against plain loops."""

import statistics

import pytest
import torch
from batches import close, make

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.groups import Groups
from nemo_algos.algorithms.core.tokens import Pools, blocks
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


def test_responses_of_a_group_share_its_buckets():
    groups = Groups.of(torch.tensor([7, 2, 7]))  # 2 is the first group, 7 the second
    mask, _ = scattered([3, 2, 4], positions=6)
    pools = Pools.of_buckets(mask, groups, 2)
    assert pools.spread(torch.arange(4))[mask].tolist() == [2, 2, 3, 0, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("seed", range(3))
def test_moments_and_zscores_of_each_pool(seed):
    lengths, labels = [4, 0, 3, 1, 5], [1, 0, 0, 2, 1]
    mask, values = scattered(lengths, seed)
    pools = Pools.of_groups(mask, Groups.of(torch.tensor(labels)))
    ids = [g for g, n in zip(labels, lengths, strict=True) for _ in range(n)]
    tokens = values[mask].tolist()
    members = [[v for v, i in zip(tokens, ids, strict=True) if i == g] for g in range(3)]
    means, stds = [[f(m) for m in members] for f in (statistics.fmean, statistics.pstdev)]
    close(pools.mean(values), torch.tensor(means, dtype=torch.float64))
    close(pools.std(values), torch.tensor(stds, dtype=torch.float64))
    want = [(v - means[i]) / (stds[i] + 1e-6) for v, i in zip(tokens, ids, strict=True)]
    got = pools.zscore(values)
    close(got[mask], torch.tensor(want, dtype=torch.float64))
    assert (got[~mask] == 0).all()


def test_zscore_in_float32_keeps_a_small_spread_on_a_large_offset():
    """Two passes: 100 + noise of 0.01."""
    mask, noise = scattered([1000], positions=1200)
    values = (100 + 0.01 * noise).float().where(mask, 0.0)
    exact = values.double()[mask]
    want = (exact - exact.mean()) / (exact.std(correction=0) + 1e-6)
    pools = Pools.of_groups(mask, Groups.of(torch.tensor([0])))
    close(pools.zscore(values)[mask].double(), want, 1e-2)


@pytest.mark.parametrize("of", [Pools.of_groups, lambda m, g: Pools.of_buckets(m, g, 3)])
def test_constant_and_empty_pools_are_0(of):
    mask, _ = scattered([3, 0])
    pools = of(mask, Groups.of(torch.tensor([0, 1])))
    values = mask * torch.tensor(0.1, dtype=torch.float64)
    assert (pools.std(values) == 0).all() and (pools.zscore(values) == 0).all()
    assert pools.mean(values)[-1] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("seed", range(40))
def test_pools_of_equal_values_are_exactly_0_and_others_are_not_touched_by_it(seed, dtype):
    """Each pool at random: one value for all its tokens, of any size and sign, or noise."""
    rng = torch.Generator().manual_seed(seed)
    rows, buckets = 12, int(torch.randint(1, 5, (), generator=rng))
    lengths = torch.randint(0, 300, (rows,), generator=rng).tolist()
    mask, noise = scattered(lengths, seed, positions=320)
    labels = torch.randint(0, 5, (rows,), generator=rng)
    pools = Pools.of_buckets(mask, Groups.of(labels), buckets)
    if buckets == 1:
        pools = Pools.of_groups(mask, Groups.of(labels))
    size = 10.0 ** torch.randint(-6, 6, (pools.number,), generator=rng)
    level = (size * torch.randn(pools.number, generator=rng)).to(dtype)
    flat = torch.rand(pools.number, generator=rng) < 0.5
    flat_at = pools.spread(flat).expand_as(mask)
    values = torch.where(flat_at, pools.spread(level), noise.to(dtype)).where(mask, 0.0)
    got = pools.zscore(values)
    assert (pools.std(values)[flat] == 0).all() and (got[flat_at] == 0).all()
    assert (got[~mask] == 0).all()
    many = pools.count > 1
    assert (pools.std(values)[~flat & many] > 0).all()
    pool_at = pools.spread(torch.arange(pools.number)).expand_as(mask)
    for pool in (~flat & many).nonzero().flatten():
        members = values[mask & (pool_at == pool)].double()
        want = (members - members.mean()) / (members.std(correction=0) + 1e-6)
        close(
            got[mask & (pool_at == pool)].double(), want, 1e-5 if dtype == torch.float32 else 1e-11
        )


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
