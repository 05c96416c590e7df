"""The search of one side: which hypothesis leaves no more than rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nemo_algos.lab.mismatch.hypotheses import (
    bookkeeping,
    computed,
    formats,
    layers,
    routes,
    sampling,
    shown,
    weights,
)
from nemo_algos.lab.mismatch.hypotheses.fit import CAP, Fit, Record
from nemo_algos.lab.mismatch.hypotheses.forward import Case, Hypothesis
from nemo_algos.lab.mismatch.hypotheses.sampling import Sampling
from nemo_algos.lab.mismatch.logits import Logits
from nemo_algos.lab.mismatch.network import Change, Network, recompute
from nemo_algos.lab.mismatch.responses import NEIGHBOURS, Responses

Array = np.ndarray
WEIGHTS = [*weights.HYPOTHESES, *formats.HYPOTHESES]
FORWARD = [*WEIGHTS, *computed.HYPOTHESES, *shown.HYPOTHESES]
FORWARD += [*routes.HYPOTHESES, *layers.HYPOTHESES]
SHOWN = {hypothesis.name for hypothesis in shown.HYPOTHESES}  # of two of them only one can hold
ADAPTER = {"adapter_missing", "adapter_twice", "adapter_scale"}
MIXED = {"old_weights", "stale_prefix"} | ADAPTER  # may hold of some responses alone
SLACK = 1.5  # of the level of a bf16 forward's rounding: other kernels round otherwise
EXACT = 0.05  # of that level: float32
SAME, SOME = 0.01, 0.1  # standard deviations, share of the tokens: then the side is in float32
SURE = -1e-3  # nats: a likelier token is the same in any format
GAIN, CERTAIN = 0.92, 5.0  # of the level before; standard errors: less is no improvement
BETTER = 0.75  # of the other forward's level, or of what fewer parameters leave: it is nearer
HALF, CLEAR = 0.5, 0.3  # of what is beyond rounding; of the level, where that is near rounding
CAUSES, FEW = 3, 2  # responses: exact agreement takes no more
FAR = 4.0  # of rounding's level: what brings such a record to rounding is its cause
TRIED = 1200  # tokens that a parameter is solved for


@dataclass(frozen=True)
class State:
    """What is assumed of a side: changes of the forward, then of sampling, then of bookkeeping.

    mixed: the changes hold of some responses alone, or of their beginnings.
    """

    changes: tuple[Change, ...] = ()
    mixed: bool = False
    sampling: Sampling | None = None
    bookkeeping: Callable[..., Iterator[Fit]] | None = None
    named: dict[str, dict[str, Any]] = field(default_factory=dict)

    def predicted(self, record: Record, logits: Logits, base: Logits) -> Fit:
        """The record under all of it, with parameters solved for; base: without changes."""
        fit = Fit(logits.logprobs, self.named)
        then = base.logprobs
        if self.sampling:
            some = np.linspace(0, len(record.value) - 1, min(TRIED, len(record.value))).astype(int)
            plain = base if self.mixed else logits  # what some responses alone have is no guide
            if found := self.sampling.solve(record.only(some), plain.only(some)):
                under = Fit(self.sampling.logprobs(logits, found), self.named | found)
                fit = under if self.mixed else best(record, [fit, under])
                then = self.sampling.logprobs(base, found)
        if self.mixed:
            predicted, place = bookkeeping.spliced(record, fit.predicted, then)
            own = {k: v | place if k in MIXED else v for k, v in fit.parameters.items()}
            fit = Fit(predicted, own)
        if self.bookkeeping:
            fits = self.bookkeeping(record, fit.predicted)
            under = [Fit(f.predicted, fit.parameters | f.parameters) for f in fits]
            fit = best(record, [fit, *under])
        return fit


def best(record: Record, fits: Sequence[Fit]) -> Fit:
    """The one of the least level; of two alike the first."""
    return min(fits, key=lambda fit: record.level(fit.predicted))


@dataclass(frozen=True)
class Outcome:
    """What became of a side. level, left: before and after, of the level of bf16's rounding.

    parameters: by the causes' names; explained: whether the rest is rounding; near: what comes
    closest where it is not, and the share that it explains; logits: as the state gives them.
    """

    parameters: dict[str, dict[str, Any]]
    level: float
    left: float
    explained: bool
    near: dict[str, float]
    state: State
    logits: Logits


@dataclass
class Search:
    """One side's record against one model. rounding: the level of a bf16 forward's rounding.

    forwards: the model in float32 and in bf16, and the logits of each; progress: is told each
    hypothesis of the forward.
    """

    case: Case
    forwards: Sequence[tuple[Network, Logits]]
    responses: Responses
    record: Record
    rounding: float
    progress: Callable[[str], None]

    def __post_init__(self) -> None:
        plain = self.forwards[0][1].logprobs
        off = self.record.off(plain)[plain < SURE]
        exact = len(off) > 0 and float((off < SAME).mean()) > SOME
        self.forwards = self.forwards[:1] if exact else self.forwards
        self.network = self.forwards[-1][0]
        # a sampler of the same kernels rounds as the model in bf16
        levels = [self.record.level(logits.logprobs) for _, logits in self.forwards]
        self.nearest, self.base = self.forwards[levels[-1] < BETTER * levels[0]]
        self.most = self.rounding * (EXACT if exact else SLACK)

    def outcome(self, other: Outcome | None = None) -> Outcome:
        """Causes one after the other, until the rest is rounding.

        other: of the other side; where this side is nearer to that, it begins with its causes.
        """
        state, logits, near = State(), self.base, {}
        level = start = self.record.level(logits.logprobs)
        if other and other.explained and other.parameters:
            shared = other.state.predicted(self.record, other.logits, self.base)
            if self.record.level(shared.predicted) < level:
                state, logits = other.state, other.logits
                level = self.record.level(shared.predicted)
        for _ in range(CAUSES):
            if level <= EXACT * self.rounding:
                break
            found, near = self._next(state, logits, level)
            if found is None:
                break
            after, found, moved = self._whole(found, state, logits)
            changed = found.changes != state.changes
            if after >= (HALF * level if level <= self.most and changed else level):
                break
            state, logits, level = found, moved, after
        named = state.predicted(self.record, logits, self.base).parameters
        share = 1 - self._beyond(level) / max(self._beyond(start), 1e-9)
        near = dict.fromkeys(named, share) | {k: v for k, v in near.items() if k not in named}
        levels = start / self.rounding, level / self.rounding
        return Outcome(named, *levels, level <= self.most, near, state, logits)

    def _whole(self, found: State, state: State, logits: Logits) -> tuple[float, State, Logits]:
        """The level on all responses, by the forward that comes nearer; state: the one before."""
        if not found.changes:
            made = [own for _, own in self.forwards]
        elif found.changes == state.changes:
            made = [logits]
        else:
            made = [recompute(net, self.responses, found.changes) for net, _ in self.forwards]
        return min(((*self._where(found, one), one) for one in made), key=lambda t: t[0])

    def _where(self, found: State, logits: Logits) -> tuple[float, State]:
        """The level, and whether some of the responses alone have the cause."""
        options = [found, replace(found, mixed=True)] if MIXED & found.named.keys() else [found]
        fits = [option.predicted(self.record, logits, self.base) for option in options]
        levels = [self.record.level(fit.predicted) for fit in fits]
        # where each response has a choice, it fits better anyhow
        mixed = len(levels) > 1 and levels[1] < HALF * levels[0]
        return levels[mixed], options[mixed]

    def _next(
        self, state: State, logits: Logits, level: float
    ) -> tuple[State | None, dict[str, float]]:
        cheap, left = self._cheap(state, logits, level)
        if cheap and left <= self.most:
            return cheap, {}
        if level <= self.most:
            tried, before = self._try(state, WEIGHTS, self.nearest, FEW)
            return (tried[0][2] if tried[0][0] < CLEAR * before else cheap), {}
        if cheap and self._beyond(left) < HALF * self._beyond(level):
            return cheap, {}
        tried, before = self._try(state, FORWARD, self.network, NEIGHBOURS // 2)
        near: dict[str, float] = {}
        for value, name, _ in tried:
            near.setdefault(name, 1 - self._beyond(value) / max(self._beyond(before), 1e-9))
        near = {name: share for name, share in near.items() if share > 0.05}
        if self._beyond(tried[0][0]) < HALF * self._beyond(before):
            return tried[0][2], near
        return cheap, near

    def _beyond(self, level: float) -> float:
        """What is more than rounding."""
        return max(level - self.most / SLACK, 0.0)

    def _cheap(self, state: State, logits: Logits, level: float) -> tuple[State | None, float]:
        """The best of bookkeeping and sampling that gains beyond chance, and its level."""
        found, least = None, level
        for trials in self._stages(state, level):
            trial, now = self._gaining(trials, state, logits, level)
            # where fewer parameters leave rounding, more must explain a part of that
            enough = BETTER if found and least <= self.most else GAIN
            if trial and now < enough * least:
                found, least = trial, now
            if found and least <= HALF * self.most:
                break
        return found, least

    def _gaining(
        self, trials: list[State], state: State, logits: Logits, level: float
    ) -> tuple[State | None, float]:
        before = state.predicted(self.record, logits, self.base).predicted
        rows = self.record.levels(before)
        found, least = None, level
        for trial in trials:
            after = trial.predicted(self.record, logits, self.base).predicted
            gained = rows - self.record.levels(after)
            sure = gained.mean() > CERTAIN * gained.std() / np.sqrt(len(rows))
            now = self.record.level(after)
            booked = trial.bookkeeping is not state.bookkeeping  # is of few tokens, and strict
            if (sure or booked) and now < GAIN * least:
                found, least = trial, now
        return found, least

    def _stages(self, state: State, level: float) -> Iterator[list[State]]:
        if state.bookkeeping is None:
            yield [replace(state, bookkeeping=f) for f in bookkeeping.HYPOTHESES]
        if state.sampling is None:
            far = [sampling.DOUBLE, sampling.TRIPLE] if level > self.most else []
            for stage in (sampling.SINGLE, *far):
                yield [replace(state, sampling=s) for s in stage]

    def _try(
        self,
        state: State,
        hypotheses: Sequence[Hypothesis],
        network: Network,
        count: int,
    ) -> tuple[list[tuple[float, str, State]], float]:
        """Each candidate's level on the first responses, the best first; and the level before."""
        some = self.responses.first(count)
        tokens = np.arange(len(some.row))
        record, base = self.record.only(tokens), self.base.only(tokens)
        # the same batch without a change: another batch rounds otherwise
        predicted = state.predicted(record, recompute(network, some, state.changes), base).predicted
        before, apart = record.level(predicted), (record.value - predicted) / record.scale
        apart = np.nan_to_num(apart).clip(-CAP, CAP)
        case = replace(self.case, responses=some, apart=apart, scale=record.scale)
        enough = self.most * (1 if before > FAR * self.most else EXACT)
        tried: list[tuple[float, str, State]] = []

        def attempt(parameter: dict[str, Any], change: Change) -> float:
            under = _under(state, hypothesis.name, parameter, change)
            moved = recompute(network, some, under.changes)
            value, option = self._better(under, record, moved, base)
            tried.append((value, hypothesis.name, option))
            return value / max(before, 1e-9)

        for hypothesis in hypotheses:
            alike = next((s for s in (SHOWN, ADAPTER) if hypothesis.name in s), {hypothesis.name})
            if alike & state.named.keys() or (hypothesis.far and before < FAR * self.most):
                continue
            self.progress(hypothesis.name)
            hypothesis.attempt(case, attempt)
            if any(value <= enough for value, *_ in tried):
                break
        return sorted(tried, key=lambda t: t[0]), before

    def _better(
        self, state: State, record: Record, logits: Logits, base: Logits
    ) -> tuple[float, State]:
        """The level, and whether the cause is of some responses alone: if only so it explains."""
        level = record.level(state.predicted(record, logits, base).predicted)
        if MIXED & state.named.keys() and len(state.changes) == 1 and level > self.most:
            mixed = replace(state, mixed=True)
            some = record.level(mixed.predicted(record, logits, base).predicted)
            if some <= self.most:
                return some, mixed
        return level, state


def _under(state: State, name: str, parameter: dict[str, Any], change: Change) -> State:
    """With one more cause; what the model is shown comes first, since others look at it."""
    changes = (change, *state.changes) if name in SHOWN else (*state.changes, change)
    return replace(state, changes=changes, named=state.named | {name: parameter})
