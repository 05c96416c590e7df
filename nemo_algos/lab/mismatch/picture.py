"""What the causes are read from: each statistic of the tokens once, by a name."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nemo_algos.lab.mismatch.statistics import (
    NONE,
    Effect,
    correlation,
    difference,
    explained,
    mean,
    means,
    split,
)
from nemo_algos.lab.mismatch.tokens import Tokens

Array = np.ndarray
SIGNIFICANT = 1e-3  # above: chance
TWO = 0.85  # of the variance of the levels between two populations; of one, normal or not, .6 to .7
TWO_ROWS = 0.8  # the same of the responses' mean levels, which are narrower
ROWS = 48  # responses: of fewer one population parts so by chance, of 16 7 times in 100
PURE = 0.75  # of a response's tokens that are off, where the response as a whole is


class Evidence(NamedTuple):
    """effect: the size; p: of one as large by chance; found: both in words; fits: large enough."""

    effect: float
    p: float
    found: str
    fits: bool

    @property
    def holds(self) -> bool:
        """Whether it is large enough, and no chance."""
        return self.fits and self.p < SIGNIFICANT


class Picture(NamedTuple):
    """Statistics of `some`, the M of N tokens whose odds can be compared, in R responses."""

    tokens: Tokens
    some: Tokens
    spread: float  # root mean square of moved
    typical: float  # median |moved| of the spread: .67 of normal noise, less the heavier the tails
    smooth: Effect  # how much of the change is a function of the odds alone
    by_token: Effect  # how much of the change is the token's, in every context; tails cut
    rare: Effect  # rank correlation of the level with the odds: below 0, rare tokens move more
    fading: Effect  # the same with the place
    trend: Effect  # the same with the place, beyond what token and odds explain
    from_start: Effect  # the same with the place in prompt and response together
    by_length: Effect  # the same of a response's level with the length of its prompt
    early: Effect  # by how many factors of 10 it is higher at the beginning than in the second half
    start: float  # by how many factors of 10 the first token's change is above the others'
    first: float  # median |moved| of the responses' first tokens, nats
    by_age: Effect  # rank correlation of a response's level with the age of the weights
    by_version: Effect  # the same with the version: below 0 where newer weights are better followed
    agreement: Effect  # rank correlation of the two sides' log-probs, of all tokens
    loud: float  # the probability of this size where the two agree up to rounding
    two: bool  # whether some tokens are exact, or nearly, and others off
    off: Array  # which tokens belong to the upper of two populations of levels [M]
    rows_off: Array  # which responses are off [R]
    whole_rows: bool  # whether responses are exact or off as a whole
    by_id: Effect  # how much of whether a token is off is the token's
    by_place: Effect  # how much of it is the place's


def picture(tokens: Tokens) -> Picture:
    """Every statistic of tokens of which enough leave a doubt."""
    t, length = tokens.only(tokens.unsure), tokens.length
    size, place = np.abs(t.moved), t.place.astype(float)
    limit, spread = 3 * np.median(size), float(np.sqrt((size**2).mean()))
    typical, beyond = float(np.median(size) / spread), _beyond(t)
    row_level, row_beyond = (means(x, t.row, len(tokens.lengths)) for x in (t.level, beyond))
    half = np.median(tokens.lengths) / 2
    first, begin = t.place == 0, t.place < max(2, half / 5)

    def by_row(known: Array | None, levels: Array) -> Effect:
        return NONE if known is None else correlation(known.astype(float), levels)

    return Picture(
        tokens=tokens,
        some=t,
        spread=spread,
        typical=typical,
        smooth=explained(t.moved, _quantile_of(t.odds, 20)),
        by_token=explained(np.clip(t.moved, -limit, limit), t.token),
        rare=correlation(t.odds, t.level),
        fading=correlation(place, t.level),
        trend=correlation(place, beyond),
        from_start=correlation(place + (0 if length is None else length[t.row]), beyond),
        by_length=by_row(length, row_beyond),
        early=difference(beyond[begin], beyond[t.place >= half]),
        start=_above(t.level, first),
        first=float(np.median(size[first])) if first.sum() > 4 else 0.0,
        by_age=by_row(tokens.age, row_level),
        by_version=by_row(tokens.version, row_level),
        agreement=correlation(tokens.sampler, tokens.trainer),
        loud=mean(tokens.per_row(np.abs(tokens.d) - 1e-5)).p,
        **_populations(t, typical, beyond, row_beyond),
    )


def _above(level: Array, first: Array) -> float:
    """By how much the median of these is above the others'; 0 where they are few, or all."""
    few = first.sum() < 5 or first.all()
    return 0.0 if few else float(np.median(level[first]) - np.median(level[~first]))


def _quantile_of(values: Array, number: int) -> Array:
    """In which of so many equal parts of all each value is."""
    return np.digitize(values, np.quantile(values, np.linspace(0, 1, number + 1)[1:-1]))


def _beyond(t: Tokens) -> Array:
    """The level beyond what token and odds explain."""
    level = t.level.copy()
    for group in (t.token, _quantile_of(t.odds, 10)) * 2:
        _, group = np.unique(group, return_inverse=True)
        level -= (np.bincount(group, level) / np.bincount(group))[group]
    return level


def _populations(t: Tokens, typical: float, beyond: Array, row_beyond: Array) -> dict[str, Any]:
    """Which tokens and responses are off, where others are exact, or nearly: by Otsu's split.

    Or no token is exact, but responses are of two levels, over a floor of noise.
    """
    edge, parted = split(t.level)
    row_edge, rows_parted = split(row_beyond[~np.isnan(row_beyond)])
    off, exact = t.level > edge, parted >= TWO or typical < 0.05
    two_rows = not exact and rows_parted >= TWO_ROWS and len(row_beyond) >= ROWS
    two_rows = two_rows and explained(beyond, t.row).size > 0.1
    rows_off = row_beyond > row_edge if two_rows else means(off, t.row, len(row_beyond)) > 0
    return {
        "two": exact or two_rows,
        "off": off,
        "rows_off": rows_off,
        "whole_rows": two_rows or (exact and _as_a_whole(t.row, off, rows_off)),
        "by_id": explained(off.astype(float), t.token),
        "by_place": explained(off.astype(float), t.place),
    }


def _as_a_whole(row: Array, off: Array, rows_off: Array) -> bool:
    """Whether responses that are off are so nearly everywhere, and from their first token on."""
    inside = rows_off[row]
    if not 0 < rows_off.mean() < 1 or off[inside].mean() < PURE:
        return False
    first = off[(np.diff(row, prepend=-1) != 0) & inside]
    return float(first.mean()) > float(off[inside].mean()) - 0.05
