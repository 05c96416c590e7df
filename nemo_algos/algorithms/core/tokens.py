"""Statistics over response tokens: moments and z-scores within pools of them, the largest values.

A pool is a group, or a bucket of a group. It is made of segments: runs of columns of a row, which
together are the whole row. What stands off the mask is 0 and counts in no pool. No Python loop over
rows, no packing; sums are taken per segment and then in float64. Shapes: [B,S], [P].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nemo_algos.algorithms.core.groups import EPS, Groups
from nemo_algos.algorithms.core.surrogate import as_number, expm1, token_counts
from nemo_algos.algorithms.shapes import Mask


@dataclass(frozen=True)
class Pools:
    """Pools of the mask [B,S], made of M segments a row.

    columns, first, tokens, pool [B,M]: width of each segment, the column of its first token (any,
    where it has none), its tokens, its pool; number: of pools, P.
    """

    mask: Mask
    columns: Tensor
    first: Tensor
    tokens: Tensor
    pool: Tensor
    number: int

    @staticmethod
    def of_groups(mask: Mask, groups: Groups) -> Pools:
        """One segment per response, one pool per group."""
        pool = groups.index[:, None]
        columns = torch.full_like(pool, mask.shape[1])
        first = as_number(mask).argmax(1, keepdim=True)
        return Pools(mask, columns, first, token_counts(mask)[:, None], pool, len(groups.count))

    @staticmethod
    def of_buckets(mask: Mask, groups: Groups, buckets: int) -> Pools:
        """K segments per response, one pool per (group, bucket): the j-th token's j*K // |o_i|."""
        seen = mask.cumsum(1, dtype=torch.int32)  # tokens up to and with this column
        bucket = torch.arange(buckets + 1, device=mask.device)
        token = (seen[:, -1:] * bucket + buckets - 1) // buckets  # [B,K+1] j, of 0..|o_i|
        column = torch.searchsorted(seen, (token + 1).int())
        first = column[:, :-1].clamp(max=mask.shape[1] - 1)
        width = column.index_fill(1, bucket[:1], 0).diff(dim=1)
        pool = groups.index[:, None] * buckets + bucket[:-1]
        return Pools(mask, width, first, token.diff(dim=1), pool, len(groups.count) * buckets)

    @cached_property
    def count(self) -> Tensor:
        """[P] float64 tokens of each pool."""
        return self._pooled(self.tokens)

    def mean(self, values: Tensor) -> Tensor:
        """[B,S], 0 off the mask -> [P] float64, 0 for an empty pool."""
        if self.pool.shape[1] == 1:
            return self._pooled(values.sum(1)) / self.count.clamp(min=1)
        sums = torch.segment_reduce(values, "sum", lengths=self.columns, axis=1, unsafe=True)
        return self._pooled(sums) / self.count.clamp(min=1)

    def spread(self, values: Tensor) -> Tensor:
        """One value per pool [P] -> at its columns, [B,S] or, where a row is one segment, [B,1]."""
        per_segment = values[self.pool]
        if self.pool.shape[1] == 1:
            return per_segment
        return per_segment.flatten().index_select(0, self._segment).view(self.mask.shape)

    def std(self, values: Tensor) -> Tensor:
        """[B,S], 0 off the mask -> [P] population standard deviation, two-pass."""
        return self.mean(self._centred(values).square_()).sqrt()

    def zscore(self, values: Tensor) -> Tensor:
        """[B,S], 0 off the mask -> (x - mean) / (std + 1e-6) within each pool, 0 off the mask."""
        centred = self._centred(values)
        scale = 1 / (self.mean(centred.square()).sqrt() + EPS)
        return centred.mul_(self.spread(scale.to(values.dtype)))

    def _centred(self, values: Tensor) -> Tensor:
        """x - mean; exactly 0 for equal values, whose rounded mean may be another number."""
        shifted = values - self.spread(self._one_of(values))
        shifted.mul_(as_number(self.mask))
        shifted.sub_(self.spread(self.mean(shifted).to(values.dtype)))
        return shifted.mul_(as_number(self.mask))

    def _one_of(self, values: Tensor) -> Tensor:
        """[B,S] -> [P] the largest of the segments' first values, 0 for an empty pool."""
        first = values.gather(1, self.first).where(self.tokens > 0, -torch.inf)
        none = first.new_full((self.number,), -torch.inf)
        top = none.scatter_reduce(0, self.pool.flatten(), first.flatten(), "amax")
        return top.where(self.count > 0, 0.0)

    @cached_property
    def _segment(self) -> Tensor:
        """[B S] the segment of each column of each row."""
        return torch.repeat_interleave(self.columns.flatten(), output_size=self.mask.numel())

    def _pooled(self, per_segment: Tensor) -> Tensor:
        zeros = torch.zeros(self.number, dtype=torch.float64, device=self.mask.device)
        return zeros.index_add(0, self.pool.flatten(), per_segment.flatten().double())


def largest_share(values: Tensor, mask: Mask, share: float) -> Tensor:
    """`largest` for a share of the mask's tokens, at least one; 0 where a value is not finite."""
    tokens = int(mask.sum())
    taken = largest(values, mask, min(tokens, max(1, int(tokens * share))))
    return taken.where(values.isfinite(), 0.0)


def largest(values: Tensor, mask: Mask, count: int) -> Tensor:
    """float64 [B,S]: 1 for the `count` largest values on the mask, else 0.

    Equal ones of which only some fit share these places evenly, whatever the order of the batch.
    """
    if not count:
        return mask.new_zeros(mask.shape, dtype=torch.float64)
    least = values[mask].topk(count).values.amin()
    above = mask & (values > least)
    ties = mask & (values == least)
    return above.double() + ties * ((count - above.sum()) / ties.sum())


def blocks(groups: Groups, rows: int) -> list[Tensor]:
    """The indices [N] of blocks of whole groups, about `rows` sequences or one larger group."""
    first = groups.count.cumsum(0) - groups.count
    block = (first // max(1, rows)).repeat_interleave(groups.count)
    sizes = block.unique_consecutive(return_counts=True)[1]
    return list(groups.index.argsort(stable=True).split(sizes.tolist()))


def log_power_mean(log_values: Tensor, mask: Mask, exponent: Tensor, least: float = 0.0) -> Tensor:
    """log M_p(u) = log(mean_t u_t^p) / p over the masked positions of each row.

    log_values [B,S] (log u, 0 off the mask), mask [B,S], exponent [B,1] >= least >= 0 -> [B,1]; 0
    for an empty row. Centred at c = mean log u: c + log1p(mean expm1(p (log u - c))) / p. By Jensen
    the mean under log1p is never negative, so nothing cancels and p -> 0 runs into the geometric
    mean exp(c).
    """
    count = token_counts(mask).clamp(min=1)[:, None]
    centre = log_values.sum(1, keepdim=True) / count
    x = (log_values - centre).mul_(exponent)
    # In float32 on the CPU plain exp is exact enough: its rounding counts 1 / exponent times.
    plain = x.is_cpu and x.dtype == torch.float32 and least >= 1 / 16
    growth = (x.exp_().sub_(1) if plain else expm1(x)).mul_(as_number(mask))
    growth = growth.sum(1, keepdim=True) / count
    tiny = exponent < torch.finfo(log_values.dtype).tiny
    return centre + (growth.log1p() / exponent.where(~tiny, 1.0)).where(~tiny, 0.0)
