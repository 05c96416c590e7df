"""The search of one side: which assumed state leaves no more than rounding of its record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from nemo_algos.lab.mismatch.hypotheses import forward, records, sampling, weights
from nemo_algos.lab.mismatch.hypotheses.forward import Case, Hypothesis
from nemo_algos.lab.mismatch.hypotheses.records import Array, Fit, Record
from nemo_algos.lab.mismatch.hypotheses.sampling import Parameters, Sampling
from nemo_algos.lab.mismatch.network import Change, Logits, Network, recompute
from nemo_algos.lab.mismatch.responses import Responses

ADAPTER = {"adapter_missing", "adapter_twice", "adapter_scale"}
MIXED = {"old_weights", "stale_prefix"} | ADAPTER  # may hold of some responses alone
SOLVED_FOR = 1200  # tokens that a parameter is solved for
FORWARD = [*weights.HYPOTHESES, *forward.COMPUTED, *forward.SHOWN]
SHOWN = {hypothesis.name for hypothesis in forward.SHOWN}  # of two of them only one can hold
# one may nearly do what another does: all are tried
COMPUTED = {hypothesis.name for hypothesis in forward.COMPUTED[:-1]}
SLACK = 1.5  # of the level of a bf16 forward's rounding: other kernels round otherwise
EXACT = 0.05  # of that level: float32; two levels that differ by less are alike
# standard deviations, share of the tokens: then the side is in float32
SAME = 0.01
SOME = 0.1
SURE = -1e-3  # nats: a likelier token is the same in any format
# of the level before; standard errors: less is no improvement
GAIN = 0.92
CERTAIN = 5.0
BETTER = 0.75  # of the other forward's level, or of what fewer parameters leave: it is nearer
# of what is beyond rounding; of the level, where that is near rounding
HALF = 0.5
CLEAR = 0.3
CAUSES = 3
# responses; exact agreement takes no more
TRIED = 4
FEW = 2
FAR = 4.0  # of rounding's level
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
        """The record under all of it, with parameters solved for; base: without changes."""
        fit = Fit(logits.logprobs, self.named)
        then = base.logprobs
        if self.sampling:
            plain = base if self.mixed else logits  # what some responses alone have is no guide
            found = _solved(self.sampling, record, plain)
            if found:
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

    forwards: the model in float32 and in bf16, and the logits of each; side: of the first;
    progress: is told each hypothesis of the forward.
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
        off = record.off(plain)[plain < SURE]
        rounded = self.forwards[-1][1]
        self.pair = self.forwards[0][1], rounded
        exact = len(off) > 0 and float((off < SAME).mean()) > SOME
        self.forwards = self.forwards[:1] if exact else self.forwards
        self.network = self.forwards[-1][0]
        # a sampler of the same kernels rounds as the model in bf16
        levels = [record.level(logits.logprobs) for _, logits in self.forwards]
        rounds = levels[-1] < BETTER * levels[0]
        self.nearest, base = self.forwards[-1 if rounds else 0]
        self.side = Side(record, base)
        self.most = self.rounding * (EXACT if exact else SLACK)

    def outcome(self, other: Outcome | None = None) -> Outcome:
        """Causes one after the other, until the rest is rounding.

        other: of the other side; where this side is nearer to that, it begins with its causes.
        """
        now = start = self.side.reached(State(), self.side.base)
        near: dict[str, float] = {}
        if other and other.explained and other.parameters:
            now = self._first([now, self.side.reached(other.state, other.logits)])
        for _ in range(CAUSES):
            if now.level <= EXACT * self.rounding:
                break
            found, near = self._next(now)
            after = self._whole(found, now) if found else now
            within = now.level <= self._most(now)
            gained = self._less(after.level, now.level, 1.0)
            if within and after.state.changes != now.state.changes:
                gained = self._less(after.level, now.level, HALF)
                # coarser weights may hide within the slack, but move every response
                coarse = "quantized_weights" in after.state.named
                more = coarse and now.level > self._most(now) / SLACK
                less = more and self._less(after.level, now.level, BETTER)
                gained |= less and self._sure(after, now)
            if not gained:
                break
            now = after
        named = now.fit.parameters
        share = self._gained(start.level, now.level)
        near = dict.fromkeys(named, share) | {k: v for k, v in near.items() if k not in named}
        off = np.abs(self.side.record.value - now.fit.predicted)
        beyond = off[self.side.record.far(now.fit.predicted)]
        within_rounding = now.level <= self._most(now)
        return Outcome(
            parameters=named,
            level=start.level / self.rounding,
            left=now.level / self.rounding,
            within_rounding=within_rounding,
            explained=within_rounding and len(beyond) <= self._most_far(now),
            far=(len(beyond), float(np.nan_to_num(beyond).max(initial=0.0))),
            near=near,
            state=now.state,
            logits=now.logits,
            rounded=self._rounded(now),
        )

    def _rounded(self, now: Reached) -> Array:
        """How far bf16 moves the log-probs under this sampling [N]; NaN where it drops a token.

        A low temperature multiplies rounding, and at a filter's edge it decides what is kept.
        """
        exact, rounded = self.pair
        found = {k: v for k, v in now.fit.parameters.items() if k in sampling.NAMES}
        if not now.state.sampling or not found:
            return rounded.logprobs - exact.logprobs
        moved = now.state.sampling.logprobs(rounded, found)
        moved = moved - now.state.sampling.logprobs(exact, found)
        flipped = sampling.dropped(rounded, found) != sampling.dropped(exact, found)
        return np.where(flipped, np.nan, moved)

    def _most(self, now: Reached) -> float:
        """The level that rounding leaves at most under this state."""
        if len(self.forwards) == 1 or not now.state.sampling:
            return self.most
        record = self.side.record
        return max(self.most, SLACK * record.level(record.value + self._rounded(now)))

    def _most_far(self, now: Reached) -> float:
        """So many tokens are far off by rounding alone; at a filter's edge a few more by chance."""
        record = self.side.record
        far = int(record.far(record.value + self._rounded(now)).sum())
        few = CHANCE**2 / 2 if sampling.CUTS.keys() & now.fit.parameters.keys() else 0.0
        return far + few + CHANCE * np.sqrt(2 * far + few / 2)

    def _first(self, reached: Sequence[Reached]) -> Reached:
        """The one of the least level; of those that are alike the first."""
        return reached[self.side.record.first([one.level for one in reached])]

    def _whole(self, found: State, before: Reached) -> Reached:
        """The state on all responses, by the forward that comes nearer."""
        if not found.changes:
            made = [own for _, own in self.forwards]
        elif found.changes == before.state.changes:
            made = [before.logits]
        else:
            made = [recompute(net, self.responses, found.changes) for net, _ in self.forwards]
        fits = [self.side.reached(found, logits) for logits in made]
        # where each response has a choice, it fits better anyhow
        return self._first([self.side.of_some(fit, HALF * fit.level) for fit in fits])

    def _next(self, now: Reached) -> tuple[State | None, dict[str, float]]:
        """What explains the most beyond this, if enough; and the share of each that is near."""
        cheap = self._cheap(now)
        near = dict[str, float]()
        left = cheap.level if cheap else now.level
        instead = cheap.state if cheap else None
        if cheap and left <= self._most(cheap):
            return instead, near
        if now.level <= self._most(now):
            tried, before = self._try(now.state, weights.HYPOTHESES, self.nearest, FEW)
            best = self._first(tried)
            most = BETTER if "quantized_weights" in best.state.named else CLEAR
            return (best.state if best.level < most * before else instead), near
        if cheap and self._beyond(left) < HALF * self._beyond(now.level):
            return instead, near
        tried, before = self._try(now.state, FORWARD, self.network, TRIED)
        for one in tried:
            for name in one.state.named.keys() - now.state.named.keys():
                near[name] = max(near.get(name, 0.05), self._gained(before, one.level))
        near = {name: share for name, share in near.items() if share > 0.05}
        best = self._first(tried)
        return (best.state if self._gains(before, best.level) else instead), near

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
        return 1 - self._beyond(after) / start if start > self.side.record.margin else 0.0

    def _cheap(self, now: Reached) -> Reached | None:
        """The best of bookkeeping and sampling that gains beyond chance."""
        found = None
        for states in self._stages(now):
            best = now
            for state in states:
                trial = self.side.reached(state, now.logits)
                if self._less(trial.level, best.level, GAIN) and self._sure(trial, now):
                    best = trial
            # where fewer parameters leave rounding, more must explain a part of that
            enough = BETTER if found and found.level <= self.most else GAIN
            if self._less(best.level, (found or now).level, enough):
                found = best
            if found and found.level <= HALF * self.most:
                break
        return found

    def _sure(self, trial: Reached, now: Reached) -> bool:
        """Beyond chance. Bookkeeping may be of few tokens, and is strict."""
        if trial.state.bookkeeping is not now.state.bookkeeping:
            return True
        before, after = (self.side.record.levels(r.fit.predicted) for r in (now, trial))
        gained = before - after
        return bool(gained.mean() > CERTAIN * gained.std() / np.sqrt(len(gained)))

    def _stages(self, now: Reached) -> Iterator[list[State]]:
        state = now.state
        if state.bookkeeping is None:
            yield [replace(state, bookkeeping=f) for f in records.HYPOTHESES]
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
        tried = [start]
        # what brings a record from far away to rounding is its cause
        enough = self.most if start.level > FAR * self.rounding else EXACT * self.rounding

        def attempt(parameter: dict[str, Any], change: Change) -> float:
            under = _under(state, hypothesis.name, parameter, change)
            after = side.reached(under, recompute(network, some, under.changes))
            if len(under.changes) == 1 and after.level > self.most:
                after = side.of_some(after, self.most)
            tried.append(after)
            return after.level / max(start.level, 1e-9)

        for hypothesis in hypotheses:
            alike = next((s for s in (SHOWN, ADAPTER) if hypothesis.name in s), {hypothesis.name})
            if alike & state.named.keys():
                continue
            self.progress(hypothesis.name)
            hypothesis.attempt(self.case, attempt)
            if hypothesis.name not in COMPUTED and any(one.level <= enough for one in tried[1:]):
                break
        within = [one for one in tried if one.level <= self.most]
        if network is not self.forwards[0][0] and start.level > self.most:
            for one in within:  # a record in float32 tells apart what bf16's rounding does not
                logits = recompute(self.forwards[0][0], some, one.state.changes)
                tried.append(side.reached(one.state, logits))
        return tried, start.level


def _under(state: State, name: str, parameter: dict[str, Any], change: Change) -> State:
    """With one more cause; what the model is shown comes first, since others look at it."""
    changes = (change, *state.changes) if name in SHOWN else (*state.changes, change)
    return replace(state, changes=changes, named=state.named | {name: parameter})
