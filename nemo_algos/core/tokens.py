"""Statistics over response tokens: moments and z-scores within pools (a group, or a bucket of a
group).

A pool is made of segments: runs of columns of a row, together the whole row. What stands off the
mask is 0 and counts in no pool. No Python loop over rows, no packing; sums are taken per segment
and then in float64. Shapes: [B,S], [P].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nemo_algos.core.groups import EPS, Groups
from nemo_algos.core.surrogate import as_number, token_counts


@dataclass(frozen=True)
class Pools:
    """mask [B,S]; columns, tokens, pool [B,M]: width of each segment, its tokens, its pool; number
    of pools P."""

    mask: Tensor
    columns: Tensor
    tokens: Tensor
    pool: Tensor
    number: int

    @staticmethod
    def of_groups(mask: Tensor, groups: Groups) -> Pools:
        """One segment per response, one pool per group."""
        pool = groups.index[:, None]
        columns = torch.full_like(pool, mask.shape[1])
        return Pools(mask, columns, token_counts(mask)[:, None], pool, len(groups.count))

    @staticmethod
    def of_buckets(mask: Tensor, groups: Groups, buckets: int) -> Pools:
        """K segments per response: its j-th token (from 0) is in bucket j*K // |o_i|; one pool per
        (group, bucket)."""
        seen = mask.cumsum(1, dtype=torch.int32)  # tokens up to and with this column
        bucket = torch.arange(buckets + 1, device=mask.device)
        first = (seen[:, -1:] * bucket + buckets - 1) // buckets  # [B,K+1] j, of 0..|o_i|
        column = torch.searchsorted(seen, (first + 1).int())
        column[:, 0] = 0
        pool = groups.index[:, None] * buckets + bucket[:-1]
        return Pools(mask, column.diff(dim=1), first.diff(dim=1), pool, len(groups.count) * buckets)

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
        centred = values - self.spread(self.mean(values).to(values.dtype))
        return centred.mul_(as_number(self.mask))

    @cached_property
    def _segment(self) -> Tensor:
        """[B S] the segment of each column of each row."""
        return torch.repeat_interleave(self.columns.flatten(), output_size=self.mask.numel())

    def _pooled(self, per_segment: Tensor) -> Tensor:
        zeros = torch.zeros(self.number, dtype=torch.float64, device=self.mask.device)
        return zeros.index_add(0, self.pool.flatten(), per_segment.flatten().double())
