"""What is done with the logits before a token is drawn: parameters are solved for.

A hypothesis is solved for a record and the model's logits of the same N tokens, and gives the
log-probs of any logits: log p_b(a) = b z_a - log sum exp(b z), less the log of the mass kept.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.optimize import least_squares

from nemo_algos.lab.mismatch.hypotheses.records import CAP, Array, Record, error, minimize
from nemo_algos.lab.mismatch.network import Logits

TEMPERATURES = np.geomspace(0.1, 5, 36)
CUTS = {  # of each filter, from the weakest on
    "top_p": 1 - np.geomspace(0.002, 0.8, 60),
    "top_k": np.unique(np.geomspace(1, 400, 60).astype(int)),
    "min_p": np.geomspace(1e-3, 0.6, 60),
}
PENALTIES = {
    "repetition_penalty": np.linspace(0.8, 2, 25),
    "presence_penalty": np.linspace(-2, 2, 33),
    "frequency_penalty": np.linspace(-2, 2, 33),
}
# ids whose bias is asked for; nats of one
COMMON = 64
NOTICED = 0.25
# ids; of the level: one that gains less is none, as all are
MOST = 24
ENOUGH = 0.98
HALF = 0.5
# exp(bias): below, a token is banned; of one that is
BANNED = 0.05
LEAST = 1e-4

Parameters = dict[str, dict[str, Any]]  # by the cause's name


class Sampling(NamedTuple):
    """solve: the parameters, None where there are none; logprobs [N]: of logits, under them."""

    solve: Callable[[Record, Logits], Parameters | None]
    logprobs: Callable[[Logits, Parameters], Array]


def tempered(logits: Logits, temperature: float) -> Array:
    """Of logits that are divided by a temperature."""
    return logits.chosen / temperature - logits.total(lambda z: z / temperature)


def _of_a_number(
    name: str, key: str, logprobs: Callable[[Logits, float], Array], grid: Callable[[Logits], Array]
) -> Sampling:
    """A cause with one number, which a grid brackets; logprobs(logits, number)."""

    def solve(record: Record, logits: Logits) -> Parameters:
        at = lambda value: logprobs(logits, value)  # noqa: E731
        value = minimize(lambda x: record.level(at(x)), grid(logits))
        more = {"error": error(record, at, value)} if name == "temperature" else {}
        return {name: {key: value, **more}}

    return Sampling(solve, lambda logits, found: logprobs(logits, found[name][key]))


def _count(loss: Callable[[float], float], grid: Array, reach: int) -> int:
    """The whole number of the least loss, so near to where the grid leads."""
    middle = int(minimize(loss, grid))
    return min(range(max(1, middle - reach), middle + reach + 1), key=loss)


class Kept:
    """The mass of the likeliest tokens."""

    def __init__(self, logits: Logits) -> None:
        self.top = logits.top
        self.logprobs = logits.logprobs
        self.mass = np.cumsum(logits.probs, 1)

    def last(self, name: str, value: float) -> Array:
        """The index of the last token that a filter keeps [N]."""
        if name == "top_p":
            kept = (self.mass < value).sum(1)
        elif name == "top_k":
            kept = np.full(len(self.top), int(value) - 1)
        else:
            kept = (self.top >= self.top[:, :1] + np.log(value)).sum(1) - 1
        return kept.clip(0, self.top.shape[1] - 1)

    def after(self, name: str, value: float) -> Array:
        """Log-probs of what the filter keeps."""
        mass = np.take_along_axis(self.mass, self.last(name, value)[:, None], 1)[:, 0]
        return self.logprobs - np.log(np.maximum(mass, 1e-300))


def dropped(logits: Logits, found: Parameters) -> Array:
    """Whether the filters of these parameters drop the token that was drawn [N]."""
    out = np.zeros(len(logits.rank), bool)
    for name in CUTS.keys() & found.keys():
        out |= logits.rank > Kept(logits).last(name, found[name][name])
    return out


def _filtered(name: str) -> Sampling:
    def solve(record: Record, logits: Logits) -> Parameters:
        kept = Kept(logits)
        loss = lambda value: record.level(kept.after(name, value))  # noqa: E731
        grid = np.sort(CUTS[name])
        value = _count(loss, grid, 12) if name == "top_k" else minimize(loss, grid)
        return {name: {name: value}}

    return Sampling(solve, lambda logits, found: Kept(logits).after(name, found[name][name]))


def penalized(name: str, logits: Logits, value: float) -> Array:
    """Of logits that are lower for tokens that stood before."""
    z = logits.seen
    if name == "repetition_penalty":
        changed = np.where(logits.before > 0, np.where(z > 0, z / value, z * value), z)
    else:
        times = logits.written if name == "frequency_penalty" else logits.written > 0
        changed = z - value * times
    highest = logits.top[:, :1]
    gain = np.exp(changed - highest) - np.exp(z - highest)
    total = np.exp(logits.normalizer - highest[:, 0]) + np.where(changed != z, gain, 0).sum(1)
    chosen = logits.chosen + np.where(logits.own, changed - z, 0).sum(1)
    return chosen - highest[:, 0] - np.log(np.maximum(total, 1e-300))


class Biased:
    """Certain ids are banned or have a bias; x [I] is exp(bias) of each, 0 of a banned one."""

    def __init__(self, logits: Logits, ids: Array) -> None:
        column = np.full(int(max(logits.ids.max(), logits.token.max(), ids.max())) + 1, -1)
        column[ids] = np.arange(len(ids))
        self.base = logits.logprobs
        self.drawn = column[logits.token]
        self.probs = np.zeros((len(self.base), len(ids)))
        where = column[logits.ids]
        rows, places = (where >= 0).nonzero()
        self.probs[rows, where[rows, places]] = logits.probs[rows, places]

    def logprobs(self, x: Array) -> Array:
        """[N]."""
        own = np.where(self.drawn >= 0, np.log(x)[self.drawn], 0)
        return self.base + own - np.log(self.total(x))

    def total(self, x: Array) -> Array:
        """The sum of the changed probabilities [N]."""
        return np.maximum(1 + self.probs @ (x - 1), 1e-9)

    def solved(self, record: Record, start: Array, active: list[int]) -> Array:
        """x [I] where those of `active` alone are free."""
        scale = record.scale[:, None]

        def whole(part: Array) -> Array:
            x = start.copy()
            x[active] = part
            return x

        found = least_squares(
            lambda part: (self.logprobs(whole(part)) - record.value) / record.scale,
            start[active],
            cast("Any", lambda part: self.slope(whole(part))[:, active] / scale),
            (LEAST, 1 / LEAST),
            loss="soft_l1",
            max_nfev=30,
        )
        return whole(found.x)

    def slope(self, x: Array) -> Array:
        """Of the log-probs [N,I]."""
        return (self.drawn[:, None] == np.arange(len(x))) / x - self.probs / self.total(x)[:, None]


def _suspects(record: Record, logits: Logits) -> Array:
    """The ids [I] that are likely everywhere, and those whose own log-probs are off the most."""
    likely = np.bincount(logits.ids.ravel(), logits.probs.ravel())
    off = (record.value - logits.logprobs) / record.scale
    off = np.abs(np.bincount(logits.token, off - np.median(off)))
    return np.union1d(np.argsort(likely)[::-1][:COMMON], np.argsort(off)[::-1][:COMMON])


def _bias(record: Record, logits: Logits) -> Parameters | None:
    """One id after the other, as long as each explains more."""
    ids = _suspects(record, logits)
    model = Biased(logits, ids)
    active = []
    x = np.ones(len(ids))
    level = start = record.level(model.logprobs(x))
    for _ in range(MOST):
        slope = model.slope(x) / record.scale[:, None]
        off = ((record.value - model.logprobs(x)) / record.scale).clip(-CAP, CAP)
        gain = np.abs(slope.T @ off) / np.maximum(np.linalg.norm(slope, axis=0), 1e-9)
        gain[active] = 0
        now = model.solved(record, x, [*active, int(gain.argmax())])
        after = record.level(model.logprobs(now))
        if after > ENOUGH * level:
            break
        active = [*active, int(gain.argmax())]
        x = now
        level = after
    moved = np.abs(np.log(x)) > NOTICED
    ids = ids[moved]
    x = x[moved]
    banned = np.less(x, BANNED)
    if not len(ids) or level > HALF * start:
        return None
    if banned.mean() >= 0.5:
        return {"banned_tokens": {"ids": sorted(map(int, ids[banned]))}}
    bias = float(np.median(np.log(x)))
    return {"logit_bias": {"ids": sorted(map(int, ids)), "bias": bias}}


def _biased(logits: Logits, found: Parameters) -> Array:
    (parameter,) = found.values()
    ids = np.array(parameter["ids"])
    x = np.exp(parameter["bias"]) if "bias" in parameter else LEAST
    return Biased(logits, ids).logprobs(np.full(len(ids), x))


NAMES = {"temperature", "banned_tokens", "logit_bias", "vocabulary_padding", *CUTS, *PENALTIES}


def widened(logits: Logits, log_mass: float) -> Array:
    """Of a softmax in which further entries share: padding of the vocabulary."""
    return logits.chosen - np.logaddexp(logits.normalizer, log_mass)


def _paddings(logits: Logits) -> Array:
    return float(np.median(logits.normalizer)) + np.linspace(-12, 6, 37)


def _penalty(name: str, grid: Array) -> Sampling:
    return _of_a_number(name, "penalty", partial(penalized, name), lambda _: grid)


HYPOTHESES = [
    _of_a_number("temperature", "temperature", tempered, lambda _: TEMPERATURES),
    *map(_filtered, CUTS),
    *(_penalty(name, grid) for name, grid in PENALTIES.items()),
    Sampling(_bias, _biased),
    _of_a_number("vocabulary_padding", "log_mass", widened, _paddings),
]
