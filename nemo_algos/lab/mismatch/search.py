"""The search of one side: which assumed state leaves no more than rounding of its record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from nemo_algos.lab.mismatch.hypotheses import forward, records, sampling, weights
from nemo_algos.lab.mismatch.hypotheses.forward import Case, Hypothesis
from nemo_algos.lab.mismatch.hypotheses.records import Array, Fit, Record
from nemo_algos.lab.mismatch.hypotheses.sampling import Parameters, Sampling
from nemo_algos.lab.mismatch.network import Change, Logits, Network, recompute
from nemo_algos.lab.mismatch.responses import Responses

# The numbers below are choices. MismatchBench (benchmarks/mismatch) counts the right and the wrong
# names that they lead to. A level is the mean |record - prediction| in standard deviations of
# rounding (`Record.level`).
ADAPTER = {"adapter_missing", "adapter_twice", "adapter_scale"}
MIXED = {"old_weights", "stale_prefix"} | ADAPTER  # may hold of some responses alone
SOLVED_FOR = 1200  # tokens that a parameter is solved for
FORWARD = [
    *weights.HYPOTHESES,
    *forward.COMPUTED,
    *forward.named(weights.missing_part),
    *forward.SHOWN,
]
SHOWN = {hypothesis.name for hypothesis in forward.SHOWN}  # of two of them only one can hold
# one may nearly do what another does: all are tried
COMPUTED = {hypothesis.name for hypothesis in forward.COMPUTED[:-1]}
# Of the level of a bf16 forward's rounding: up to SLACK times it is rounding, as other kernels
# round otherwise; up to EXACT times it is float32's, and two levels that differ by less are alike.
SLACK = 1.5
EXACT = 0.05
# A side is in float32 where more than SOME of its tokens are off by less than SAME standard
# deviations. Tokens that are likelier than SURE (nats) are left out: any format has the same.
SAME = 0.01
SOME = 0.1
SURE = -1e-3
# The share of the level before that a cause may leave: GAIN, any cause at all; BETTER, to prefer
# the other forward, more parameters, or coarser weights; HALF (of what is beyond rounding), to name
# a cause, or to try no others; CLEAR, to name one where all is within rounding.
GAIN = 0.92
BETTER = 0.75
HALF = 0.5
CLEAR = 0.3
CERTAIN = 5.0  # standard errors over responses: a gain of less may be chance
CAUSES = 3  # at most, of a side
# responses that a cause is tried on; fewer where the record is within rounding of the forward
TRIED = 4
FEW = 2
FAR = 4.0  # of rounding's level: a record that is further off, and comes to rounding, has its cause
CHANCE = 3.0  # standard deviations of a difference of two counts


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
        """What would be recorded under all of it, with its parameters.

        logits: of the changed forward; base: of the model as it is. The parameters of sampling are
        solved for. Where it explains the record no better than none, it is left out; so is
        bookkeeping.
        """
        fit = Fit(logits.logprobs, self.named)
        unchanged = base.logprobs  # of responses that the changes do not hold of, if mixed
        if self.sampling:
            guide = base if self.mixed else logits  # what some responses alone have is no guide
            solved = _solved(self.sampling, record, guide)
            if solved:
                sampled = Fit(self.sampling.logprobs(logits, solved), self.named | solved)
                fit = sampled if self.mixed else record.best([fit, sampled])
                unchanged = self.sampling.logprobs(base, solved)
        if self.mixed:
            fit = Fit(record.mixed(fit.predicted, unchanged), fit.parameters)
        if self.bookkeeping:
            candidates = [fit]
            for booked in self.bookkeeping(record, fit.predicted):
                candidates.append(Fit(booked.predicted, fit.parameters | booked.parameters))
            fit = record.best(candidates)
        return fit


@lru_cache(maxsize=2)  # the same for each bookkeeping that is tried after it
def _solved(sampling: Sampling, record: Record, logits: Logits) -> Parameters | None:
    some = np.linspace(0, len(record.value) - 1, min(SOLVED_FOR, len(record.value))).astype(int)
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
        tokens = np.arange(count)
        return Side(self.record.only(tokens), self.base.only(tokens))


@dataclass(frozen=True)
class Outcome:
    """What became of a side. level, left: before and after, of the level of bf16's rounding.

    parameters: by the causes' names; within_rounding: whether the mean of the rest is; explained:
    whether no single token is further off, too; far: how many are, and how far the furthest, nats;
    near: what comes closest where it is not explained, and the share that it explains; logits: as
    the state gives them; rounded: how far bf16 moves these log-probs [N], NaN where it drops one.
    """

    parameters: dict[str, dict[str, Any]]
    level: float
    left: float
    within_rounding: bool
    explained: bool
    far: tuple[int, float]
    near: dict[str, float]
    state: State
    logits: Logits
    rounded: Array


@dataclass
class Search:
    """One side's record against one model. rounding: the level of a bf16 forward's rounding.

    forwards: the model in float32 and in bf16, and the logits of each; a side in float32 keeps only
    the first. side: with the logits of the first; then of the forward that is nearest to the
    record. progress: is told each hypothesis of the forward.
    """

    case: Case
    forwards: Sequence[tuple[Network, Logits]]
    responses: Responses
    side: Side
    rounding: float
    progress: Callable[[str], None]

    def __post_init__(self) -> None:
        record = self.side.record
        plain = self.side.base.logprobs
        self.pair = self.forwards[0][1], self.forwards[-1][1]
        off = record.off(plain)[plain < SURE]
        exact = len(off) > 0 and float((off < SAME).mean()) > SOME
        if exact:
            self.forwards = self.forwards[:1]
        self.network = self.forwards[-1][0]
        # a sampler of the same kernels rounds as the model in bf16
        levels = [record.level(logits.logprobs) for _, logits in self.forwards]
        rounds = levels[-1] < BETTER * levels[0]
        self.nearest, logits = self.forwards[-1 if rounds else 0]
        self.side = Side(record, logits)
        self.most = self.rounding * (EXACT if exact else SLACK)

    def outcome(self, other: Outcome | None = None) -> Outcome:
        """Causes one after the other, until the rest is rounding.

        other: of the other side; where this side is nearer to that, it begins with its causes.
        """
        start = self.side.reached(State(), self.side.base)
        current = start
        shares: dict[str, float] = {}
        if other and other.explained and other.parameters:
            current = self._least([current, self.side.reached(other.state, other.logits)])
        for _ in range(CAUSES):
            if current.level <= EXACT * self.rounding:
                break
            state, shares = self._next(current)
            if not state:
                break
            changed = self._whole(state, current)
            if not self._improves(changed, current):
                break
            current = changed
        parameters = current.fit.parameters
        near = dict.fromkeys(parameters, self._gained(start.level, current.level))
        for name, share in shares.items():
            near.setdefault(name, share)
        off = np.abs(self.side.record.value - current.fit.predicted)
        beyond = off[self.side.record.far(current.fit.predicted)]
        within_rounding = current.level <= self._most(current)
        return Outcome(
            parameters=parameters,
            level=start.level / self.rounding,
            left=current.level / self.rounding,
            within_rounding=within_rounding,
            explained=within_rounding and len(beyond) <= self._most_far(current),
            far=(len(beyond), float(np.nan_to_num(beyond).max(initial=0.0))),
            near=near,
            state=current.state,
            logits=current.logits,
            rounded=self._rounded(current),
        )

    def _improves(self, changed: Reached, current: Reached) -> bool:
        """Whether the level is less, and by more if only the forward changed within rounding."""
        most = self._most(current)
        within = current.level <= most
        if not within or changed.state.changes == current.state.changes:
            return self._less(changed.level, current.level, 1.0)
        if self._less(changed.level, current.level, HALF):
            return True
        # coarser weights may hide within the slack, but move every response
        if "quantized_weights" not in changed.state.named or current.level <= most / SLACK:
            return False
        return self._less(changed.level, current.level, BETTER) and self._sure(changed, current)

    def _rounded(self, current: Reached) -> Array:
        """How far bf16 moves the log-probs under this sampling [N]; NaN where it drops a token.

        A low temperature multiplies rounding, and at a filter's edge it decides what is kept.
        """
        exact, rounded = self.pair
        solved = {}
        for k, v in current.fit.parameters.items():
            if k in sampling.NAMES:
                solved[k] = v
        if not current.state.sampling or not solved:
            return rounded.logprobs - exact.logprobs
        moved = current.state.sampling.logprobs(rounded, solved)
        moved = moved - current.state.sampling.logprobs(exact, solved)
        flipped = sampling.dropped(rounded, solved) != sampling.dropped(exact, solved)
        return np.where(flipped, np.nan, moved)

    def _most(self, current: Reached) -> float:
        """The level that rounding leaves at most under this state."""
        if len(self.forwards) == 1 or not current.state.sampling:
            return self.most
        record = self.side.record
        return max(self.most, SLACK * record.level(record.value + self._rounded(current)))

    def _most_far(self, current: Reached) -> float:
        """The most tokens that are far off by rounding alone, as those of the bf16 forward are.

        Of two counts of one mean the difference has twice that mean as its variance (Poisson); the
        mean is taken to be bf16's count. At a filter's edge that count may be 0 by chance: there 0
        allows CHANCE**2 tokens.
        """
        record = self.side.record
        far = int(record.far(record.value + self._rounded(current)).sum())
        at_edge = CHANCE**2 / 2 if sampling.CUTS.keys() & current.fit.parameters.keys() else 0.0
        return far + at_edge + CHANCE * np.sqrt(2 * far + at_edge / 2)

    def _least(self, candidates: Sequence[Reached]) -> Reached:
        """The one of the least level; of those that are alike the first."""
        return candidates[self.side.record.first([one.level for one in candidates])]

    def _whole(self, state: State, current: Reached) -> Reached:
        """The state on all responses, by the forward that comes nearer."""
        if not state.changes:
            forwards = [own for _, own in self.forwards]
        elif state.changes == current.state.changes:
            forwards = [current.logits]
        else:
            forwards = []
            for net, _ in self.forwards:
                forwards.append(recompute(net, self.responses, state.changes))
        candidates = []
        for logits in forwards:
            reached = self.side.reached(state, logits)
            # with a choice for each response any state fits better, so that it must halve the level
            candidates.append(self.side.of_some(reached, HALF * reached.level))
        return self._least(candidates)

    def _next(self, current: Reached) -> tuple[State | None, dict[str, float]]:
        """What explains the most beyond this, if enough; and the share of each that is near.

        Bookkeeping and sampling are tried first, as they need no forward: they are taken if they
        leave rounding, or half of what is beyond it. Else causes of the forward are tried, and
        those are taken where none of the forward explains enough.
        """
        cheap = self._cheap(current)
        fallback = None
        remaining = current.level
        if cheap:
            fallback = cheap.state
            remaining = cheap.level
            if remaining <= self._most(cheap):
                return fallback, {}
        if current.level <= self._most(current):  # rounding, but maybe of coarser weights
            trials, start = self._try(current.state, weights.HYPOTHESES, self.nearest, FEW)
            best = self._least(trials)
            enough = BETTER if "quantized_weights" in best.state.named else CLEAR
            return (best.state if best.level < enough * start else fallback), {}
        if cheap and self._beyond(remaining) < HALF * self._beyond(current.level):
            return fallback, {}
        trials, start = self._try(current.state, FORWARD, self.network, TRIED)
        shares = dict[str, float]()
        for trial in trials:
            for name in trial.state.named.keys() - current.state.named.keys():
                shares[name] = max(shares.get(name, 0.0), self._gained(start, trial.level))
        near = {name: share for name, share in shares.items() if share > 0.05}  # less is noise
        best = self._least(trials)
        return (best.state if self._gains(start, best.level) else fallback), near

    def _gains(self, before: float, after: float) -> bool:
        """Enough for a name; where the forward that is tried is at rounding anyhow, more."""
        if before <= self.most:
            return after < CLEAR * before
        return self._beyond(after) < HALF * self._beyond(before)

    def _less(self, after: float, before: float, times: float) -> bool:
        """Less than so many times the level before, and not alike."""
        return after < min(times * before, before - self.side.record.margin)

    def _beyond(self, level: float) -> float:
        """What is more than rounding."""
        return max(level - self.most / SLACK, 0.0)

    def _gained(self, before: float, after: float) -> float:
        """The share of what is more than rounding that is gone; 0 where nothing was more."""
        start = self._beyond(before)
        if start > self.side.record.margin:
            return 1 - self._beyond(after) / start
        return 0.0

    def _cheap(self, current: Reached) -> Reached | None:
        """The best of bookkeeping and sampling that gains beyond chance."""
        chosen = None
        for states in self._stages(current):
            best = current
            for state in states:
                trial = self.side.reached(state, current.logits)
                if self._less(trial.level, best.level, GAIN) and self._sure(trial, current):
                    best = trial
            # where fewer parameters leave rounding, more must explain a part of that
            enough = BETTER if chosen and chosen.level <= self.most else GAIN
            if self._less(best.level, (chosen or current).level, enough):
                chosen = best
            if chosen and chosen.level <= HALF * self.most:
                break
        return chosen

    def _sure(self, trial: Reached, current: Reached) -> bool:
        """Beyond chance. Bookkeeping may be of few tokens, and is strict."""
        if trial.state.bookkeeping is not current.state.bookkeeping:
            return True
        record = self.side.record
        gained = record.levels(current.fit.predicted) - record.levels(trial.fit.predicted)
        return bool(gained.mean() > CERTAIN * gained.std() / np.sqrt(len(gained)))

    def _stages(self, current: Reached) -> Iterator[list[State]]:
        state = current.state
        if state.bookkeeping is None:
            yield [replace(state, bookkeeping=one) for one in records.HYPOTHESES]
        if state.sampling is None:
            yield [replace(state, sampling=one) for one in sampling.HYPOTHESES]

    def _try(
        self, state: State, hypotheses: Sequence[Hypothesis], network: Network, count: int
    ) -> tuple[list[Reached], float]:
        """Each candidate on the responses that are off the most; and the level before."""
        some = self.responses.first(count)
        side = self.side.first(len(some.row))
        # the same batch without a change: another batch rounds otherwise
        start = side.reached(state, recompute(network, some, state.changes))
        trials = [start]
        # what brings a record from far away to rounding is its cause
        enough = self.most if start.level > FAR * self.rounding else EXACT * self.rounding

        def attempt(name: str, parameter: dict[str, Any], change: Change) -> float:
            assumed = _with_cause(state, name, parameter, change)
            trial = side.reached(assumed, recompute(network, some, assumed.changes))
            if len(assumed.changes) == 1 and trial.level > self.most:
                trial = side.of_some(trial, self.most)
            trials.append(trial)
            return trial.level / max(start.level, 1e-9)

        for hypothesis in hypotheses:
            if _exclusive(hypothesis.name) & state.named.keys():
                continue
            self.progress(hypothesis.name)
            hypothesis.attempt(self.case, partial(attempt, hypothesis.name))
            if hypothesis.name in COMPUTED:
                continue
            if any(trial.level <= enough for trial in trials[1:]):
                break
        exact = self.forwards[0][0]
        if network is not exact and start.level > self.most:
            # a record in float32 tells apart what bf16's rounding does not
            for trial in list(trials):
                if trial.level <= self.most:
                    logits = recompute(exact, some, trial.state.changes)
                    trials.append(side.reached(trial.state, logits))
        return trials, start.level


def _exclusive(name: str) -> set[str]:
    """The causes of which only one can hold, this one among them."""
    for causes in (SHOWN, ADAPTER):
        if name in causes:
            return causes
    return {name}


def _with_cause(state: State, name: str, parameter: dict[str, Any], change: Change) -> State:
    """With one more cause; what the model is shown comes first, since others look at it."""
    changes = (*state.changes, change)
    if name in SHOWN:
        changes = (change, *state.changes)
    return replace(state, changes=changes, named=state.named | {name: parameter})
