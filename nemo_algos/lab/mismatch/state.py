"""What is assumed of a side, and the record that this predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from nemo_algos.lab.mismatch.hypotheses.records import Fit, Record
from nemo_algos.lab.mismatch.hypotheses.sampling import Parameters, Sampling
from nemo_algos.lab.mismatch.logits import Logits
from nemo_algos.lab.mismatch.network import Change

ADAPTER = {"adapter_missing", "adapter_twice", "adapter_scale"}
MIXED = {"old_weights", "stale_prefix"} | ADAPTER  # may hold of some responses alone
TRIED = 1200  # tokens that a parameter is solved for


@dataclass(frozen=True)
class State:
    """What is assumed of a side: changes of the forward, then of sampling, then of bookkeeping.

    mixed: the changes hold of some responses alone.
    """

    changes: tuple[Change, ...] = ()
    mixed: bool = False
    sampling: Sampling | None = None
    bookkeeping: Callable[..., Iterator[Fit]] | None = None
    named: Parameters = field(default_factory=dict)

    def predicted(self, record: Record, logits: Logits, base: Logits) -> Fit:
        """The record under all of it, with parameters solved for; base: without changes."""
        fit = Fit(logits.logprobs, self.named)
        then = base.logprobs
        if self.sampling:
            plain = base if self.mixed else logits  # what some responses alone have is no guide
            if found := _solved(self.sampling, record, plain):
                under = Fit(self.sampling.logprobs(logits, found), self.named | found)
                fit = under if self.mixed else record.best([fit, under])
                then = self.sampling.logprobs(base, found)
        if self.mixed:
            fit = Fit(record.mixed(fit.predicted, then), fit.parameters)
        if self.bookkeeping:
            fits = self.bookkeeping(record, fit.predicted)
            under = [Fit(f.predicted, fit.parameters | f.parameters) for f in fits]
            fit = record.best([fit, *under])
        return fit


@lru_cache(maxsize=2)  # the same for each bookkeeping that is tried after it
def _solved(sampling: Sampling, record: Record, logits: Logits) -> Parameters | None:
    some = np.linspace(0, len(record.value) - 1, min(TRIED, len(record.value))).astype(int)
    return sampling.solve(record.only(some), logits.only(some))


class Reached(NamedTuple):
    """A state, its logits, what it predicts of a record, and the level that this leaves."""

    state: State
    logits: Logits
    fit: Fit
    level: float


class Side(NamedTuple):
    """What a side recorded, and the logits of the model as it is."""

    record: Record
    base: Logits

    def reached(self, state: State, logits: Logits) -> Reached:
        """logits: as the state gives them."""
        fit = state.predicted(self.record, logits, self.base)
        return Reached(state, logits, fit, self.record.level(fit.predicted))

    def of_some(self, whole: Reached, most: float) -> Reached:
        """With the changes of some responses alone, where that leaves no more than `most`."""
        if whole.state.mixed or not MIXED & whole.state.named.keys():
            return whole
        mixed = self.reached(replace(whole.state, mixed=True), whole.logits)
        return mixed if mixed.level <= most else whole

    def first(self, count: int) -> Side:
        """Of so many tokens."""
        tokens = np.arange(count)
        return Side(self.record.only(tokens), self.base.only(tokens))
