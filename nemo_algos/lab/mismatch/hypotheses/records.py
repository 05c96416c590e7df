"""How well a prediction meets a record, and what is done with log-probs once they are computed.

The hypotheses of bookkeeping need no model: each takes a record and what it should have been [N],
and returns what it then would be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

Array = np.ndarray
CAP = 30.0  # standard deviations: a token further off counts as much
ROUNDING = 2e-6  # nats, of float32
FAR = 10.0  # standard deviations: more is no rounding
CLOSE = 4.0  # standard deviations, in the mean of a response: it is the same
LEAST = 5  # tokens that a response is recognized by
NEARLY = 0.95  # of the tokens
TIES = 2.2  # nats: of less than nine tokens alike
REPEATED = 3  # tokens of one and the same value: no chance
LAGS = (1, -1, 2, -2)  # tokens
FEW = 0.05  # of the difference: a temperature of the logits leaves more than that
ALIKE = 0.02  # of a factor
BASES = {2: 1 / np.log(2), 10: 1 / np.log(10)}


class Fit(NamedTuple):
    """predicted [N], nats; parameters: by the cause's name."""

    predicted: Array
    parameters: dict[str, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Record:
    """One side's log-probs of N tokens. value [N]: nats; row, place, token [N].

    scale [N]: one standard deviation of rounding, nats; margin: levels that differ by less are
    alike, so that no name hangs on rounding.
    """

    value: Array
    scale: Array
    row: Array
    place: Array
    token: Array
    margin: float = 0.0

    def off(self, predicted: Array) -> Array:
        """|record - prediction| [N], standard deviations; what is no number is far off."""
        off = np.abs(self.value - predicted) / self.scale
        return np.minimum(np.nan_to_num(off, nan=CAP), CAP)

    def level(self, predicted: Array) -> float:
        return float(self.off(predicted).mean())

    def levels(self, predicted: Array) -> Array:
        """The same of each response [R]."""
        return np.bincount(self.row, self.off(predicted)) / np.bincount(self.row)

    def far(self, predicted: Array) -> Array:
        """Whether a token is further off than rounding takes it [N]."""
        return self.off(predicted) > FAR

    def best(self, fits: Sequence[Fit]) -> Fit:
        """The one of the least level; of those that are alike the first."""
        return fits[self.first([self.level(fit.predicted) for fit in fits])]

    def first(self, levels: Sequence[float]) -> int:
        """The index of the least level; of those that are alike the first, which is simpler."""
        best = 0
        for i, level in enumerate(levels):
            if level < levels[best] - self.margin:
                best = i
        return best

    def mixed(self, first: Array, then: Array) -> Array:
        """For each response the prediction that is less off [N]; where both are alike the second.

        first, then [N]: a response has one of them as a whole.
        """
        nearer = self.levels(first) < self.levels(then) - self.margin
        return np.where(nearer[self.row], first, then)

    def only(self, where: Array) -> Record:
        """Those tokens; `where` [N] bool or indices."""
        columns = {}
        for k, v in vars(self).items():
            if isinstance(v, np.ndarray):
                columns[k] = v[where]
        return replace(self, **columns)


def crossing(first: Array, then: Array) -> int:
    """The place from which on the second is less off than the first [n]."""
    before = np.cumsum(np.r_[0.0, first])
    after = np.cumsum(np.r_[0.0, then[::-1]])[::-1]
    return int(np.argmin(before + after))


def minimize(loss: Callable[[float], float], grid: Array) -> float:
    """Where the loss is least: the best of the grid, then between its neighbours."""
    if len(grid) == 1:
        return float(grid[0])
    values = [loss(x) for x in grid]
    i = int(np.argmin(values))
    bounds = (grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)])
    found: Any = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    if found.fun <= values[i]:
        return float(found.x)
    return float(grid[i])


def error(record: Record, at: Callable[[float], Array], x: float) -> float:
    """The standard error of a parameter, from the residual and the prediction's slope."""
    step = 1e-3 * max(abs(x), 1e-3)
    slope = (at(x + step) - at(x - step)) / (2 * step) / record.scale
    residual = (record.off(at(x)) ** 2).mean()
    return float(np.sqrt(residual / max(np.nansum(slope**2), 1e-30)))


def shifted(record: Record, expected: Array) -> Iterator[Fit]:
    """Each place holds the number of the next one, or of the one before."""
    for places in LAGS:
        away = np.roll(expected, -places)
        same = np.roll(record.row, -places) == record.row
        # a place that has no neighbour is not judged
        yield Fit(np.where(same, away, record.value), {"shift": {"places": places}})


def other_base(record: Record, expected: Array) -> Iterator[Fit]:
    """Logarithms to another base."""
    for base, factor in BASES.items():
        if np.isclose(_factor(record, expected), factor, rtol=ALIKE):
            yield Fit(expected * factor, {"log_base": {"base": base}})


def _factor(record: Record, expected: Array) -> float:
    """The record divided by what is expected, by least squares."""
    return float((record.value @ expected) / max(expected @ expected, 1e-30))


def scaled(record: Record, expected: Array) -> Iterator[Fit]:
    """All are multiplied by one factor, as where a temperature divides log-probs, not logits."""
    factor = _factor(record, expected)
    if factor <= 0:
        return
    # the root: either side in the light of the other leaves the same
    left = np.abs(record.value - factor * expected).sum() / np.sqrt(factor)
    bases = []  # the other side may have the base
    for by in BASES.values():
        bases += (by, 1 / by)
    if np.isclose(factor, bases, rtol=ALIKE).any():
        return
    if left < FEW * np.abs(record.value - expected).sum():
        yield Fit(factor * expected, {"log_factor": {"factor": factor}})


def clamped(record: Record, expected: Array) -> Iterator[Fit]:
    """No number is below one that several tokens have."""
    least = record.value.min()
    equal = record.value == least
    if equal.sum() >= REPEATED and least < -1:
        predicted = np.where(equal & (expected < least + 1), least, expected)
        yield Fit(predicted, {"clamp": {"least": float(least)}})
        if (expected[equal] > least + 1).any():  # a stand-in for what the engine did not return
            yield Fit(np.where(equal, least, expected), {"clamp": {"least": float(least)}})


def ended(record: Record, expected: Array) -> Iterator[Fit]:
    """The tokens that end a response are booked otherwise, or the mask goes beyond them."""
    last = np.flatnonzero(np.diff(record.row, append=-1))
    ids, counts = np.unique(record.token[last], return_counts=True)
    for common in ids[counts >= REPEATED]:
        ends = _to_the_end(record, record.token == common)
        off = ends & (record.off(expected) > CLOSE)
        if off.sum() >= REPEATED:
            value = {"value": float(np.median(record.value[off]))}
            yield Fit(np.where(ends, record.value, expected), {"end_of_response": value})


def _to_the_end(record: Record, where: Array) -> Array:
    """Of `where` [N] what no other token of the response follows."""
    others = np.cumsum(~where)
    last = np.flatnonzero(np.diff(record.row, append=-1))
    rows = np.unique(record.row, return_inverse=True)[1]
    return where & (others == others[last][rows])


def padded(record: Record, expected: Array) -> Iterator[Fit]:
    """Zeros from a place on to the end of a response."""
    tail = _to_the_end(record, record.value == 0)
    if (tail & (expected < -0.01)).sum() >= REPEATED and not tail.all():
        first = int(record.place[tail].min())
        yield Fit(np.where(tail, 0.0, expected), {"padding": {"from_place": first}})


def greedy(record: Record, expected: Array) -> Iterator[Fit]:
    """All are 0: each token was certain to the sampler, but for ties, which are -log 2 or so."""
    alike = np.exp(np.minimum(-record.value, TIES))
    certain = np.abs(alike - alike.round()) < 1e-3
    if (record.value == 0).mean() > NEARLY and (expected < -0.1).mean() > 1 - NEARLY:
        yield Fit(np.where(certain, record.value, expected), {"greedy": {}})


def rounded(record: Record, expected: Array) -> Iterator[Fit]:
    """Log-probs that are kept in bfloat16: eight bits of each."""
    bits = record.value.astype(np.float32).view(np.uint32)
    if (bits & 0xFFFF).any() or not record.value.any():
        return
    grid = 2.0 ** (np.floor(np.log2(np.maximum(-expected, 1e-30))) - 7)
    near = np.abs(record.value - expected) <= grid
    parameter = {"dtype": "bfloat16 log-probs"}
    yield Fit(np.where(near, record.value, expected), {"precision": parameter})


def exchanged(record: Record, expected: Array) -> Iterator[Fit]:
    """Some responses hold the numbers of others."""
    parts = np.split(expected, np.flatnonzero(np.diff(record.row)) + 1)
    predicted = expected.copy()
    moved = 0
    for i in np.flatnonzero(record.levels(expected) > CLOSE):
        own = record.only(record.row == i)
        best = parts[own.first([_of_another(own, part) for part in parts])]
        if _of_another(own, best) < min(CLOSE, own.level(parts[i]) / 3):
            behind = own.value[len(best) :]
            predicted[record.row == i] = np.r_[best[: len(own.row)], behind]
            moved += 1
    if moved:
        yield Fit(predicted, {"rows": {"responses": moved, "of": len(parts)}})


def _of_another(own: Record, other: Array) -> float:
    n = min(len(own.row), len(other))
    if n >= LEAST:
        return own.only(np.arange(n)).level(other[:n])
    return np.inf


def retokenized(record: Record, expected: Array) -> Iterator[Fit]:
    """From a place on, some responses are shifted: their text was cut into other tokens.

    Where most of them are shifted from their beginning on, and alike, their text has no part in it.
    """
    predicted = expected.copy()
    moved = list[tuple[int, int]]()
    for i in np.flatnonzero(record.levels(expected) > CLOSE / 2):
        there = np.flatnonzero(record.row == i)
        own = record.only(there)
        tried = [_from_a_place_on(own, expected[there], lag) for lag in LAGS]
        best = own.first([own.level(away) for _, away in tried])
        place, away = tried[best]
        if own.level(away) < own.level(expected[there]) / 3:
            predicted[there] = away
            moved.append((place, LAGS[best]))
    if moved:
        counts = {"responses": len(moved), "of": int(record.row.max()) + 1}
        whole = Counter(lag for place, lag in moved if place == 0)
        lag, alike = max(whole.items(), key=lambda pair: pair[1], default=(0, 0))
        if alike > len(moved) / 2:
            yield Fit(predicted, {"shift": {"places": lag, **counts}})
        else:
            yield Fit(predicted, {"retokenized": counts})


def _from_a_place_on(own: Record, expected: Array, lag: int) -> tuple[int, Array]:
    """The cut that fits best, and what it predicts; beyond the end nothing is judged."""
    n = len(expected)
    source = np.arange(n) + lag
    away = np.where((source >= 0) & (source < n), expected[source.clip(0, n - 1)], own.value)
    place = crossing(own.off(expected), own.off(away))
    return place, np.where(np.arange(n) < place, expected, away)


HYPOTHESES = (
    shifted,
    other_base,
    greedy,
    scaled,
    clamped,
    ended,
    padded,
    rounded,
    exchanged,
    retokenized,
)
