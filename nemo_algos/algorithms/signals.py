"""What flows between a method's functions, from the driver half to the surrogate.

B sequences, S positions. A value per sequence is [B,1], a value per token [B,S]; they broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


Memory = Mapping[str, Any]  # what JSON holds: numbers, texts, lists and dictionaries by text


class Term(NamedTuple):
    """What a driver function returns.

    value: advantages or an extra, [B] or (named in Method.per_token) [B,S]; of bounds, (low, high),
    numbers or such tensors; of a loss term's `coef`, a number. metrics: numbers. reports: [B] or
    [B,S], read by nobody in a worker. memory: what the function is given with the next batch.
    """

    value: Any
    metrics: Mapping[str, float] = {}
    reports: Mapping[str, Tensor] = {}
    memory: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Signals:
    """The driver half's result for a rollout batch: constants of the loss, [B,1] or [B,S].

    low, high: clip to [1 - low, 1 + high], plain numbers where no batch changes them; extras: the
    method's own and the weights of loss terms, by name; metrics: numbers; reports: tensors that no
    worker reads; memory: for the next batch's `Algorithm.signals`.
    """

    advantages: Tensor
    low: Tensor | float
    high: Tensor | float
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    reports: Mapping[str, Tensor] = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)

    def __getitem__(self, rows: Tensor | slice) -> Signals:
        return self._map(lambda x: x[rows])

    def to(self, *args: Any) -> Signals:
        """As Tensor.to, for every tensor."""
        return self._map(lambda x: x.to(*args))

    def _map(self, f: Callable[[Tensor], Tensor]) -> Signals:
        low, high = (b if isinstance(b, (int, float)) else f(b) for b in (self.low, self.high))
        extras, reports = ({k: f(v) for k, v in x.items()} for x in (self.extras, self.reports))
        advantages = f(self.advantages)
        return replace(
            self, advantages=advantages, low=low, high=high, extras=extras, reports=reports
        )


class Shaped(NamedTuple):
    """The surrogate's log r' and A', [B,S] or [B,1], and the log-ratio that low and high judge.

    side: its sign tells which bound cuts; A' itself, or A where reweight cuts it to 0.
    """

    log_ratio: Tensor
    advantages: Tensor
    judged: Tensor
    low: Tensor | float
    high: Tensor | float
    side: Tensor
