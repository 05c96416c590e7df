"""The search of one side: which hypothesis leaves no more than rounding."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from operator import attrgetter
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
from nemo_algos.lab.mismatch.hypotheses.fit import CAP
from nemo_algos.lab.mismatch.hypotheses.forward import Case, Hypothesis
from nemo_algos.lab.mismatch.logits import Logits
from nemo_algos.lab.mismatch.network import Change, Network, recompute
from nemo_algos.lab.mismatch.responses import NEIGHBOURS, Responses
from nemo_algos.lab.mismatch.state import ADAPTER, Reached, Side, State

WEIGHTS = [*weights.HYPOTHESES, *formats.HYPOTHESES]
FORWARD = [*WEIGHTS, *computed.HYPOTHESES, *shown.HYPOTHESES]
FORWARD += [*routes.HYPOTHESES, *layers.HYPOTHESES]
SHOWN = {hypothesis.name for hypothesis in shown.HYPOTHESES}  # of two of them only one can hold
SLACK = 1.5  # of the level of a bf16 forward's rounding: other kernels round otherwise
EXACT = 0.05  # of that level: float32
SAME, SOME = 0.01, 0.1  # standard deviations, share of the tokens: then the side is in float32
SURE = -1e-3  # nats: a likelier token is the same in any format
GAIN, CERTAIN = 0.92, 5.0  # of the level before; standard errors: less is no improvement
BETTER = 0.75  # of the other forward's level, or of what fewer parameters leave: it is nearer
HALF, CLEAR = 0.5, 0.3  # of what is beyond rounding; of the level, where that is near rounding
CAUSES, FEW = 3, 2  # responses: exact agreement takes no more
FAR = 4.0  # of rounding's level: what brings such a record to rounding is its cause
LEVEL = attrgetter("level")


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
        record, plain = self.side.record, self.side.base.logprobs
        off = record.off(plain)[plain < SURE]
        exact = len(off) > 0 and float((off < SAME).mean()) > SOME
        self.forwards = self.forwards[:1] if exact else self.forwards
        self.network = self.forwards[-1][0]
        # a sampler of the same kernels rounds as the model in bf16
        levels = [record.level(logits.logprobs) for _, logits in self.forwards]
        self.nearest, base = self.forwards[levels[-1] < BETTER * levels[0]]
        self.side = Side(record, base)
        self.most = self.rounding * (EXACT if exact else SLACK)

    def outcome(self, other: Outcome | None = None) -> Outcome:
        """Causes one after the other, until the rest is rounding.

        other: of the other side; where this side is nearer to that, it begins with its causes.
        """
        now = start = self.side.reached(State(), self.side.base)
        near: dict[str, float] = {}
        if other and other.explained and other.parameters:
            now = min(now, self.side.reached(other.state, other.logits), key=LEVEL)
        for _ in range(CAUSES):
            if now.level <= EXACT * self.rounding:
                break
            found, near = self._next(now)
            after = self._whole(found, now) if found else now
            changed = after.state.changes != now.state.changes
            if after.level >= now.level * (HALF if changed and now.level <= self.most else 1):
                break
            now = after
        named = now.fit.parameters
        share = self._gained(start.level, now.level)
        near = dict.fromkeys(named, share) | {k: v for k, v in near.items() if k not in named}
        levels = start.level / self.rounding, now.level / self.rounding
        return Outcome(named, *levels, now.level <= self.most, near, now.state, now.logits)

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
        return min((self.side.spliced(fit, HALF * fit.level) for fit in fits), key=LEVEL)

    def _next(self, now: Reached) -> tuple[State | None, dict[str, float]]:
        """What explains the most beyond this, if enough; and the share of each that is near."""
        cheap, near = self._cheap(now), dict[str, float]()
        left = cheap.level if cheap else now.level
        instead = cheap.state if cheap else None
        if cheap and left <= self.most:
            return instead, near
        if now.level <= self.most:
            tried, before = self._try(now.state, WEIGHTS, self.nearest, FEW)
            return (tried[0][2] if tried[0][0] < CLEAR * before else instead), near
        if cheap and self._beyond(left) < HALF * self._beyond(now.level):
            return instead, near
        tried, before = self._try(now.state, FORWARD, self.network, NEIGHBOURS // 2)
        for value, name, _ in tried:
            near.setdefault(name, self._gained(before, value))
        near = {name: share for name, share in near.items() if share > 0.05}
        value, _, best = tried[0]
        return (best if self._gains(before, value) else instead), near

    def _gains(self, before: float, after: float) -> bool:
        """Enough for a name; where the forward that is tried is at rounding anyhow, more."""
        if before <= self.most:
            return after < CLEAR * before
        return self._beyond(after) < HALF * self._beyond(before)

    def _beyond(self, level: float) -> float:
        """What is more than rounding."""
        return max(level - self.most / SLACK, 0.0)

    def _gained(self, before: float, after: float) -> float:
        """The share of what is more than rounding that is gone."""
        return 1 - self._beyond(after) / max(self._beyond(before), 1e-9)

    def _cheap(self, now: Reached) -> Reached | None:
        """The best of bookkeeping and sampling that gains beyond chance."""
        found = None
        for states in self._stages(now):
            best = now
            for state in states:
                trial = self.side.reached(state, now.logits)
                if trial.level < GAIN * best.level and self._sure(trial, now):
                    best = trial
            # where fewer parameters leave rounding, more must explain a part of that
            enough = BETTER if found and found.level <= self.most else GAIN
            if best.level < enough * (found or now).level:
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
            yield [replace(state, bookkeeping=f) for f in bookkeeping.HYPOTHESES]
        if state.sampling is None:
            far = [sampling.DOUBLE, sampling.TRIPLE] if now.level > self.most else []
            for stage in (sampling.SINGLE, *far):
                yield [replace(state, sampling=s) for s in stage]

    def _try(
        self, state: State, hypotheses: Sequence[Hypothesis], network: Network, count: int
    ) -> tuple[list[tuple[float, str, State]], float]:
        """Each candidate's level on the first responses, the best first; and the level before."""
        some = self.responses.first(count)
        side = self.side.first(len(some.row))
        # the same batch without a change: another batch rounds otherwise
        before = side.reached(state, recompute(network, some, state.changes))
        apart = (side.record.value - before.fit.predicted) / side.record.scale
        case = replace(
            self.case,
            responses=some,
            apart=np.nan_to_num(apart).clip(-CAP, CAP),
            scale=side.record.scale,
            temperature=before.temperature,
        )
        far = before.level > FAR * self.most / SLACK
        enough = self.most * (1 if far else EXACT)
        tried: list[tuple[float, str, State]] = []

        def attempt(parameter: dict[str, Any], change: Change) -> float:
            under = _under(state, hypothesis.name, parameter, change)
            after = side.reached(under, recompute(network, some, under.changes))
            if len(under.changes) == 1 and after.level > self.most:
                after = side.spliced(after, self.most)
            tried.append((after.level, hypothesis.name, after.state))
            return after.level / max(before.level, 1e-9)

        for hypothesis, following in zip_longest(hypotheses, hypotheses[1:]):
            alike = next((s for s in (SHOWN, ADAPTER) if hypothesis.name in s), {hypothesis.name})
            if alike & state.named.keys() or (hypothesis.far and not far):
                continue
            self.progress(hypothesis.name)
            hypothesis.attempt(case, attempt)
            # parts of responses may fit the next way of the same cause better
            again = following and following.name == hypothesis.name
            if any(value <= enough and not (s.mixed and again) for value, _, s in tried):
                break
        return sorted(tried, key=lambda t: t[0]), before.level


def _under(state: State, name: str, parameter: dict[str, Any], change: Change) -> State:
    """With one more cause; what the model is shown comes first, since others look at it."""
    changes = (change, *state.changes) if name in SHOWN else (*state.changes, change)
    return replace(state, changes=changes, named=state.named | {name: parameter})
