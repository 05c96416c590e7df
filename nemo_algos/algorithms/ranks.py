"""One's own loop on data-parallel ranks: what each rank needs of all the others.

    mine, signals = rank_signals(algorithm, rollouts)        # statistics of all ranks' rollouts
    counts = rank_counts(mine.mask)                          # of all ranks' optimizer batch
    loss = policy_loss(algorithm, logprobs, mine, signals, counts)
    (loss.value * dist.get_world_size()).backward()          # DDP and FSDP average gradients
    metrics = rank_stats(loss.stats).summary()

Every rank makes these calls, and has the same statistics. `group`: the process group of the
data-parallel ranks, None for all ranks. What travels is small beside a batch's forward pass.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.core.metrics import Stats
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.kernel import Memory, Signals
from nemo_algos.algorithms.rollouts import TENSORS, Rollouts
from nemo_algos.algorithms.shapes import Mask

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


def rank_signals(
    algorithm: Algorithm,
    rollouts: Rollouts,
    memory: Memory | None = None,
    updates: int = 1,
    group: ProcessGroup | None = None,
) -> tuple[Rollouts, Signals]:
    """`Algorithm.correct` and `Algorithm.signals` of all ranks' rollouts: this rank's rows of both.

    rollouts: this rank's, [B]. Equal labels of groups are one prompt, on whatever rank: a group may
    lie on several, and two ranks' prompts need different labels. updates: the optimizer batches
    that each rank cuts its rows into, in order. Raises ValueError where they cannot be cut evenly,
    the rest as `Algorithm.signals`.
    """
    found = _of_all_ranks(_columns(rollouts), group)
    lengths = [len(columns["rewards"]) for columns in found]
    if updates > 1 and (len(set(lengths)) > 1 or lengths[0] % updates):
        raise ValueError(
            f"the ranks have {lengths} sequences, which are not {updates} optimizer batches of "
            "equal size on each rank. Give all ranks the same number, a multiple of `updates`."
        )
    rows = torch.arange(sum(lengths)).split(lengths)
    pieces = [of_rank.tensor_split(updates) for of_rank in rows]
    # an optimizer batch is consecutive rows: the mean of a loss term is over one
    order = torch.cat([piece[update] for update in range(updates) for piece in pieces])
    whole, corrected = algorithm.correct(_joined(rollouts, found)[order])
    signals = algorithm.signals(whole, memory, len(order) // updates)
    signals = replace(signals, metrics={**corrected, **signals.metrics})
    own = order.argsort()[rows[dist.get_rank(group)]]
    width = rollouts.mask.shape[1]

    def mine(x: Tensor) -> Tensor:
        return (x[own, :width] if x.dim() == 2 else x[own]).to(rollouts.mask.device)

    changed = ("mask", "old_logprobs", "rollout_is_weights")  # by `Algorithm.correct`
    values = {name: getattr(whole, name) for name in changed}
    known = {}
    for name, value in values.items():
        if value is not None:
            known[name] = mine(value)
    return replace(rollouts, **known), signals.map(mine)


def rank_counts(mask: Mask, group: ProcessGroup | None = None) -> Counts:
    """The counts of an optimizer batch of which each rank has some rows, mask [B,S]."""
    found = _of_all_ranks(astuple(Counts.of(mask)), group)
    return Counts(*(sum(values) for values in zip(*found, strict=True)))


def rank_stats(stats: Stats, group: ProcessGroup | None = None) -> Stats:
    """The statistics of all ranks' rows, on the CPU."""
    own = Stats(
        sums={name: torch.as_tensor(value).cpu() for name, value in stats.sums.items()},
        histogram=stats.histogram.cpu(),
        max_log_ratio=stats.max_log_ratio.cpu(),
    )
    return sum(_of_all_ranks(own, group), Stats.empty())


def _of_all_ranks(value: T, group: ProcessGroup | None) -> list[T]:
    """The value that each rank has, in their order."""
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group)
    return found


def _columns(rollouts: Rollouts) -> dict[str, Tensor]:
    """All that is a tensor, on the CPU; parts of the reward by ("part", name)."""
    values: dict[Any, Any] = {}
    for name in (*TENSORS, "turn_rewards"):
        values[name] = getattr(rollouts, name)
    for name, part in (rollouts.reward_parts or {}).items():
        values[("part", name)] = part
    return {name: value.cpu() for name, value in values.items() if value is not None}


def _joined(like: Rollouts, found: list[dict[Any, Tensor]]) -> Rollouts:
    """All ranks' rows, as wide as the widest; what stands behind a shorter response is 0."""
    joined = dict[Any, Tensor]()
    for name, first in found[0].items():
        columns = [columns[name] for columns in found]
        if first.dim() == 2:
            width = max(column.shape[1] for column in columns)
            columns = [F.pad(column, (0, width - column.shape[1])) for column in columns]
        joined[name] = torch.cat(columns)
    parts = {}
    for name in [*joined]:
        if isinstance(name, tuple):
            parts[name[1]] = joined.pop(name)
    return replace(like, **joined, reward_parts=parts or None)
