"""Statistics over response tokens: the masked tokens of a batch packed into one row of N, and z-scores in segments.

A segment is a run of consecutive packed tokens (a response, or a bucket of one); segments belong to pools (a group, or
a bucket of a group). O(N) memory, no Python loop. Sums are taken per segment and then in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_algos.core.groups import EPS, Groups


@dataclass(frozen=True)
class Pools:
    """length [M] of each segment, in packed order; pool [M] of each; number of pools P."""

    length: Tensor
    pool: Tensor
    number: int

    @staticmethod
    def of_groups(lengths: Tensor, groups: Groups) -> Pools:
        """One segment per response (lengths [B]), one pool per group."""
        return Pools(lengths, groups.index, len(groups.count))

    @staticmethod
    def of_buckets(lengths: Tensor, groups: Groups, buckets: int) -> Pools:
        """K segments per response: its j-th token (from 0) is in bucket j*K // |o_i|; one pool per (group, bucket)."""
        edges = torch.arange(buckets + 1, device=lengths.device)
        starts = (lengths[:, None] * edges + buckets - 1) // buckets  # [B, K+1]
        pool = groups.index[:, None] * buckets + edges[:-1]
        return Pools(starts.diff(dim=1).flatten(), pool.flatten(), len(groups.count) * buckets)

    def spread(self, values: Tensor) -> Tensor:
        """One value per pool [P] -> its tokens [N]."""
        return values[self.pool].repeat_interleave(self.length)

    def mean(self, tokens: Tensor) -> Tensor:
        """[N] -> [P] float64, 0 for an empty pool."""
        sums = torch.segment_reduce(tokens, "sum", lengths=self.length, unsafe=True).double()
        zeros = torch.zeros(self.number, dtype=torch.float64, device=tokens.device)
        return zeros.index_add(0, self.pool, sums) / zeros.index_add(
            0, self.pool, self.length.double()
        ).clamp(min=1)

    def std(self, tokens: Tensor) -> Tensor:
        """[N] -> [P] population standard deviation, two-pass."""
        return self.mean((tokens - self.spread(self.mean(tokens).to(tokens))).square_()).sqrt()

    def zscore(self, tokens: Tensor) -> Tensor:
        """[N] -> [N], (x - mean) / (std + 1e-6) within each pool."""
        centred = tokens - self.spread(self.mean(tokens).to(tokens))
        scale = 1 / (self.mean(centred.square()).sqrt() + EPS)
        return centred.mul_(self.spread(scale.to(tokens)))


def unpack(tokens: Tensor, mask: Tensor) -> Tensor:
    """[N] -> [B,S], 0 off the mask; the inverse of x[mask]."""
    return torch.zeros(mask.shape, dtype=tokens.dtype, device=mask.device).masked_scatter_(
        mask, tokens
    )
