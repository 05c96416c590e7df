"""A batch's update by the library's own two halves, for many batches at once.

M batches of P prompts with G answers each; every batch has a policy of its own for each prompt,
logits [M,P,N,V], and the loss of the whole is the sum of the batches' losses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from groups import Batches
from torch import Tensor
from world import World, node_entropy

from nemo_algos import Algorithm, Counts, Rollouts, Signals, policy_loss


class Policies(NamedTuple):
    """Logits [P,N,V]: the trainer's as the batch is sampled, the sampler's, the reference's."""

    trainer: Tensor
    sampler: Tensor
    reference: Tensor


class Part(NamedTuple):
    """Batches [m] of equal counts, their rows, and both as the loss takes them."""

    rows: Tensor
    rollouts: Rollouts
    signals: Signals
    counts: Counts


def is_batchwise(algorithm: Algorithm) -> bool:
    """Whether its driver half must see one optimizer batch at a time."""
    components = (algorithm.base, algorithm.advantages, algorithm.bounds)
    whole = any(c.method.whole_batch or c.params.whole_batch for c in components)
    return whole or "memory" in algorithm.needs


def along(table: Tensor, cells: Tensor, world: World, answers: Tensor) -> Tensor:
    """Values [.., P, C] at each answer's cells [L,S], 0 off the mask: rows [M P G, S]."""
    index = cells[answers]
    every = table.expand(*answers.shape[:2], table.shape[-1])
    values = every.gather(2, index.flatten(2)).view(index.shape)
    return values.where(world.mask[answers], 0.0).flatten(0, 2)


def logprobs(world: World, logits: Tensor, answers: Tensor) -> Tensor:
    """Of the answers' tokens, rows [M P G, S]; logits [.., P, N, V]."""
    return along(logits.log_softmax(-1).flatten(-2), world.cells, world, answers)


def entropies(world: World, logits: Tensor, answers: Tensor) -> Tensor:
    """Of the distributions that these tokens are drawn from."""
    return along(node_entropy(logits), world.node, world, answers)


def rollouts(world: World, policies: Policies, answers: Tensor) -> Rollouts:
    """What a trainer would hold of these batches, a row per answer."""
    old, gen, ref = (logprobs(world, logits, answers) for logits in policies)
    entropy = entropies(world, policies.trainer, answers)
    batches, prompts, size = answers.shape
    group, flat = torch.arange(batches * prompts).repeat_interleave(size), answers.flatten()
    rewards = world.rewards[flat]
    return Rollouts(
        group, rewards, world.mask[flat], old, ref, entropy, gen,
        reward_parts={"right": rewards}, prompt=group % prompts, drift=rewards.new_zeros(len(flat)),
    )  # fmt: skip


def parts(
    algorithm: Algorithm, world: World, policies: Policies, batches: Batches, warm: Tensor
) -> Iterator[Part]:
    """The driver half. warm [M,P,G]: batches before, for a memory."""
    per_batch = batches.answers[0].numel()
    whole = algorithm.correct(rollouts(world, policies, batches.answers))[0]
    signals = _signals(algorithm, whole, per_batch, rollouts(world, policies, warm))
    tokens = whole.mask.view(len(batches.weight), -1).sum(1)
    alike = tokens if algorithm.mean == "token" else tokens.new_zeros(len(tokens))
    for key in alike.unique():
        first = (alike == key).nonzero() * per_batch
        rows = (first + torch.arange(per_batch)).flatten()
        counts = Counts.of(whole.mask[rows[:per_batch]])
        yield Part(rows, whole[rows], signals[rows], counts)


def _signals(algorithm: Algorithm, whole: Rollouts, size: int, warm: Rollouts) -> Signals:
    if not is_batchwise(algorithm):
        return algorithm.signals(whole, {}, size)
    memory = {}
    if "memory" in algorithm.needs:
        for batch in _each(algorithm.correct(warm)[0], size):
            memory = algorithm.signals(batch, memory, size).memory
    return joined([algorithm.signals(batch, memory, size) for batch in _each(whole, size)])


def _each(whole: Rollouts, size: int) -> Iterator[Rollouts]:
    for start in range(0, len(whole), size):
        yield whole[start : start + size]


def joined(found: list[Signals]) -> Signals:
    """The signals of several batches, one below the other."""

    def rows(values: list[Any]) -> Any:
        return values[0] if isinstance(values[0], float) else torch.cat(values)

    advantages, low, high = ([getattr(s, k) for s in found] for k in ("advantages", "low", "high"))
    extras = {k: rows([s.extras[k] for s in found]) for k in found[0].extras}
    return Signals(rows(advantages), rows(low), rows(high), extras)


def directions(
    algorithm: Algorithm, world: World, answers: Tensor, loss_parts: list[Part], logits: Tensor
) -> Tensor:
    """The worker half: each batch's own ascent direction at its own policy, [M,P,N,V]."""
    logits = logits.detach().requires_grad_()
    current, entropy = logprobs(world, logits, answers), None
    if "entropy_gradient" in algorithm.needs:
        entropy = entropies(world, logits, answers)
    loss = torch.zeros((), dtype=torch.float64)
    for rows, batch, signals, counts in loss_parts:
        own = None if entropy is None else entropy[rows]
        part = policy_loss(algorithm, current[rows], batch, signals, counts, entropy=own)
        loss = loss + part.value
    return -torch.autograd.grad(loss, logits)[0]
