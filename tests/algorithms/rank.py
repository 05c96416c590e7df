"""A data-parallel rank of test_ranks.py: `rank.py RANK SIZE PORT WRAPPER BLOCKS`.

Each optimizer batch's gradient and metrics on SIZE ranks, under DDP or FSDP2, against those of one
process that has all rows.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from batches import make
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nemo_algos import (
    Algorithm,
    Counts,
    Rollouts,
    Signals,
    build,
    policy_loss,
    rank_counts,
    rank_signals,
    rank_stats,
)
from nemo_algos.algorithms.loss import Loss
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.algorithms.rollouts import TENSORS

WIDTH, NARROW = 9, 7  # tokens of the first rank's batch, and of the others'
TERMS = {"nll": {"coef": 0.1}, "entropy": {"coef": 0.01, "aggregation": "sequence"}}
SOME = [
    {"name": "etr", "terms": TERMS},
    {"name": "grpo", "aggregation": "token", "terms": {"adaptive_entropy": {"start": 0.001}}},
    {"advantages": "erpo", "bounds": "etr"},
    {"name": "apmpo"},
    {"name": "turn_quatro"},
]
EVERY = [*SOME, {"name": "apmpo", "statistics": "group"}, *({"name": name} for name in METHODS)]
REJECTED = {"rollout_rs": "token_k1", "rollout_rs_threshold": 1.1}
WEIGHED = {"rollout_is": "token", "rollout_is_batch_normalize": True}
CORRECTIONS = [{}, {**WEIGHED, **REJECTED}]
CORRECTED = ("etr", "grpo")


class Policy(nn.Module):
    """log pi_theta [B,S]: given numbers, and features [B,S,5] times the parameters, 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Linear(5, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.shift.weight)

    def forward(self, logprobs: Tensor, features: Tensor) -> Tensor:
        return logprobs + self.shift(features)[..., 0]


def wrapped(policy: Policy, wrapper: str) -> nn.Module:
    if wrapper == "none":
        return policy
    if wrapper == "ddp":
        return DistributedDataParallel(policy)
    from torch.distributed.fsdp import fully_shard  # its import takes seconds

    return fully_shard(policy)


class World:
    """A rollout batch of all ranks; rows: of each rank, in the order of its optimizer batches."""

    def __init__(self, size: int, updates: int) -> None:
        batch = make(size, positions=WIDTH)
        rng = torch.Generator().manual_seed(size)
        shape = (*batch.logprobs.shape, 5)
        self.features = 0.1 * torch.randn(shape, generator=rng, dtype=torch.float64)
        self.logprobs = batch.logprobs
        self.updates = updates
        every = torch.arange(len(self.logprobs))
        if updates == 1:  # unequally many, and a group may lie on several ranks
            first = len(every) // 2 + 1
            self.rows = [every[:first], *every[first:].tensor_split(size - 1)]
        else:
            equal = len(every) // (size * updates) * updates
            self.rows = list(every[: equal * size].split(equal))
        mask = batch.rollouts.mask.clone()
        mask[torch.cat(self.rows[1:]), NARROW:] = False  # the batches of all ranks but the first
        self.rollouts = replace(batch.rollouts, mask=mask, turn=None, last_turn=None)

    def loss(
        self,
        policy: nn.Module,
        algorithm: Algorithm,
        rows: Tensor,
        mine: Rollouts,
        signals: Signals,
        counts: Counts,
    ) -> Loss:
        width = mine.mask.shape[1]
        logprobs = policy(self.logprobs[rows, :width], self.features[rows, :width])
        return policy_loss(algorithm, logprobs, mine, signals, counts, entropy=-0.7 * logprobs)


def alone(world: World, algorithm: Algorithm) -> Iterator[tuple[Tensor, dict[str, float]]]:
    """The gradient and metrics of each optimizer batch in one process."""
    pieces = [rows.tensor_split(world.updates) for rows in world.rows]
    batches = [torch.cat([piece[k] for piece in pieces]) for k in range(world.updates)]
    order = torch.cat(batches)
    rollouts, corrected = algorithm.correct(world.rollouts[order])
    memory: dict = {}
    for _ in range(2):  # of the second rollout batch, what the first is remembered by counts
        signals = algorithm.signals(rollouts, memory, len(batches[0]))
        memory = signals.memory
    for k, rows in enumerate(batches):
        at = torch.arange(len(order)).split(len(rows))[k]
        policy = Policy()
        counts = Counts.of(rollouts.mask[at])
        loss = world.loss(policy, algorithm, rows, rollouts[at], signals[at], counts)
        loss.value.backward()
        yield policy.shift.weight.grad, {**loss.stats.summary(), **corrected, **signals.metrics}


def together(
    world: World, algorithm: Algorithm, wrapper: str
) -> Iterator[tuple[Tensor, dict[str, float]]]:
    """The same on this rank of several."""
    rank = dist.get_rank()
    rows = world.rows[rank]
    mine = world.rollouts[rows]
    if rank:
        tokens = [name for name, per_row in TENSORS.items() if not per_row]
        known = {name: getattr(mine, name) for name in tokens}
        mine = replace(mine, **{k: x[:, :NARROW] for k, x in known.items() if x is not None})
    memory: dict = {}
    for _ in range(2):
        corrected, signals = rank_signals(algorithm, mine, memory, world.updates)
        memory = signals.memory
    for at in torch.arange(len(rows)).tensor_split(world.updates):
        policy = Policy()
        trained = wrapped(policy, wrapper)
        counts = rank_counts(corrected.mask[at])
        loss = world.loss(trained, algorithm, rows[at], corrected[at], signals[at], counts)
        (loss.value * dist.get_world_size()).backward()
        gradient = policy.shift.weight.grad
        gradient = gradient.full_tensor() if wrapper == "fsdp2" else gradient
        yield gradient, {**rank_stats(loss.stats).summary(), **signals.metrics}


def apart(found: float, wanted: float) -> float:
    return abs(found - wanted) / max(1.0, abs(wanted))


def cases(size: int, blocks: list[dict]) -> Iterator[tuple[World, Algorithm]]:
    for updates in (1, 2):
        world = World(size, updates)
        for block in blocks:
            for correction in CORRECTIONS if block.get("name") in CORRECTED else CORRECTIONS[:1]:
                yield world, build(block, correction)


def compared(
    world: World, algorithm: Algorithm, found: list[tuple[Tensor, dict[str, float]]]
) -> list[float]:
    """The largest error of the gradient and metrics of each optimizer batch."""
    errors = list[float]()
    for (gradient, metrics), (same, seen) in zip(alone(world, algorithm), found, strict=True):
        assert seen.keys() == metrics.keys(), (algorithm.name, seen.keys() ^ metrics.keys())
        off = float((same - gradient).norm() / gradient.norm().clamp(min=1e-6))
        errors.append(max(off, *(apart(seen[k], metrics[k]) for k in metrics)))
    return errors


def errors(rank: int, size: int, port: int, wrapper: str, blocks: list[dict]) -> list[float]:
    """What rank 0 has `compared` of all cases."""
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    found = list[float]()
    for world, algorithm in cases(size, blocks):
        here = list(together(world, algorithm, wrapper))
        if rank == 0:
            found += compared(world, algorithm, here)
    dist.barrier()
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    rank, size, port, wrapper, names = sys.argv[1:]
    errors(int(rank), int(size), int(port), wrapper, json.loads(names))
