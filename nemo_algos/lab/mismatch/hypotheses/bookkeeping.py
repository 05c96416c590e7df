"""What is done with log-probs once they are computed: none needs the model.

Each takes a record and what it should have been [N], and returns what it then would be.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from nemo_algos.lab.mismatch.hypotheses.fit import Fit, Record, crossing

Array = np.ndarray
CLOSE = 4.0  # standard deviations, in the mean of a response: it is the same
LEAST = 5  # tokens that a response is recognized by
NEARLY = 0.95  # of the tokens
TIES = 2.2  # nats: of less than nine tokens alike
REPEATED = 3  # tokens of one and the same value: no chance
LAGS = (1, -1, 2, -2)  # tokens
BASES = {2: 1 / np.log(2), 10: 1 / np.log(10)}


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
        yield Fit(expected * factor, {"log_base": {"base": base}})


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
    predicted, moved = expected.copy(), 0
    for i in np.flatnonzero(record.levels(expected) > CLOSE):
        own = record.only(record.row == i)
        best = min(parts, key=partial(_of_another, own))
        if _of_another(own, best) < min(CLOSE, own.level(parts[i]) / 3):
            behind = own.value[len(best) :]
            predicted[record.row == i] = np.r_[best[: len(own.row)], behind]
            moved += 1
    if moved:
        yield Fit(predicted, {"rows": {"responses": moved, "of": len(parts)}})


def _of_another(own: Record, other: Array) -> float:
    n = min(len(own.row), len(other))
    return own.only(np.arange(n)).level(other[:n]) if n >= LEAST else np.inf


def retokenized(record: Record, expected: Array) -> Iterator[Fit]:
    """From a place on, some responses are shifted: their text was cut into other tokens."""
    predicted, moved = expected.copy(), 0
    for i in np.flatnonzero(record.levels(expected) > CLOSE / 2):
        there = np.flatnonzero(record.row == i)
        own = record.only(there)
        best = min((_from_a_place_on(own, expected[there], k) for k in LAGS), key=own.level)
        if own.level(best) < own.level(expected[there]) / 3:
            predicted[there] = best
            moved += 1
    if moved:
        counts = {"responses": moved, "of": int(record.row.max()) + 1}
        yield Fit(predicted, {"retokenized": counts})


def _from_a_place_on(own: Record, expected: Array, lag: int) -> Array:
    """The cut that fits best; beyond the end nothing is judged."""
    n = len(expected)
    source = np.arange(n) + lag
    away = np.where((source >= 0) & (source < n), expected[source.clip(0, n - 1)], own.value)
    return np.where(np.arange(n) < crossing(own.off(expected), own.off(away)), expected, away)


def spliced(record: Record, first: Array, then: Array) -> tuple[Array, dict[str, int]]:
    """In each response the first up to a place, and the second from there on [N].

    Also that place, in the middle of the responses' places, where most change within.
    """
    predicted, inside = then.copy(), list[int]()
    rows = np.unique(record.row)
    for i in rows:
        there = np.flatnonzero(record.row == i)
        own = record.only(there)
        cut = crossing(own.off(first[there]), own.off(then[there]))
        predicted[there[:cut]] = first[there[:cut]]
        inside += [cut] if 0 < cut < len(there) else []
    most = len(inside) > len(rows) / 2
    return predicted, {"until_token": int(np.median(inside))} if most else {}


HYPOTHESES = (shifted, other_base, greedy, clamped, ended, padded, rounded, exchanged, retokenized)
