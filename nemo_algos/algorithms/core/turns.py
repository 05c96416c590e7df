"""Turns of responses: what a response earns from a turn on, and sums over a turn's tokens."""

import torch
from torch import Tensor

from nemo_algos.algorithms.shapes import Mask, PerSequence


def runs(mask: Mask) -> Tensor:
    """int64 [B,S]: each unbroken run of the mask is a turn, and what stands behind it is of it."""
    begins = mask.clone()
    begins[:, 1:] &= ~mask[:, :-1]
    return (begins.cumsum(1) - 1).clamp(min=0)


def index(turn: Tensor, mask: Mask) -> Tensor:
    """int64 [B,S]: the turn of each response token, 0 off the mask."""
    return turn.long().where(mask, 0)


def last(turn: Tensor, mask: Mask) -> Tensor:
    """int64 [B]: the turn of each response's last token, 0 for an empty one."""
    if mask.shape[1]:
        return index(turn, mask).amax(1)
    return turn.new_zeros(len(turn)).long()


def returns(rewards: PerSequence, earned: Tensor, turn: Tensor, last: Tensor) -> Tensor:
    """[B], what turns earned [B,E], `index` [B,S], `last` [B] -> float64 [B,T] for T turns.

    The reward without what came before the turn; behind a response's last turn, that turn's.
    """
    turns = int(turn.max()) + 1 if turn.numel() else 1
    before = rewards.new_zeros(len(rewards), turns)
    given = earned[:, : turns - 1]  # of a turn before the next one
    before[:, 1 : 1 + given.shape[1]] = given
    to_go = rewards[:, None] - before.cumsum(1)
    return to_go.gather(1, torch.arange(turns, device=turn.device).minimum(last[:, None]))


def spread(values: list[Tensor], turn: Tensor) -> Tensor:
    """A value [B] for each of T turns -> [B,S]: each token has its turn's."""
    return torch.stack(values, 1).gather(1, turn)


def sums(values: Tensor, turn: Tensor) -> Tensor:
    """[B,S] -> [B,S]: the sum over the tokens of each token's turn; values are 0 off the mask."""
    # a column for each position, of which there are at least as many as turns: a GPU is not asked
    return torch.zeros_like(values).scatter_add(1, turn, values).gather(1, turn)


def means(values: Tensor, turn: Tensor, mask: Mask) -> Tensor:
    """[B,S] -> [B,S]: the mean over the tokens of each token's turn; values are 0 off the mask."""
    return sums(values, turn) / sums(mask.to(values.dtype), turn).clamp(min=1)
