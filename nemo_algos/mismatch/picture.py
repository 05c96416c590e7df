"""What the causes are read from: each statistic of the tokens once, by a name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nemo_algos.mismatch.statistics import NONE, Effect, correlation, explained, mean, split
from nemo_algos.mismatch.tokens import Tokens

Array = np.ndarray
SIGNIFICANT = 1e-3  # above: chance
TWO = 0.85  # of the variance of the levels between two populations; of one, normal or not, .6 to .7
TWO_ROWS = 0.8  # the same of the responses' mean levels, which are narrower
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


@dataclass(frozen=True)
class Picture:
    """Of the tokens whose odds can be compared, unless a statistic says otherwise."""

    tokens: Tokens

    @cached_property
    def moved(self) -> Array:
        """By how much the trainer's odds are higher, nats."""
        return self.tokens.moved[self.tokens.unsure]

    @cached_property
    def level(self) -> Array:
        """log10 |moved|."""
        return self.tokens.level[self.tokens.unsure]

    @cached_property
    def odds(self) -> Array:
        return self.tokens.odds[self.tokens.unsure]

    @cached_property
    def row(self) -> Array:
        return self.tokens.row[self.tokens.unsure]

    @cached_property
    def place(self) -> Array:
        return self.tokens.place[self.tokens.unsure]

    @cached_property
    def token(self) -> Array:
        return self.tokens.token[self.tokens.unsure]

    @cached_property
    def size(self) -> float:
        """Mean |d| of all tokens, nats."""
        return float(np.abs(self.tokens.d).mean())

    @cached_property
    def spread(self) -> float:
        """Root mean square of moved."""
        return float(np.sqrt((self.moved**2).mean()))

    @cached_property
    def typical(self) -> float:
        """Median |moved| of the spread: .67 of normal noise, less the heavier the tails."""
        return float(np.median(np.abs(self.moved)) / self.spread)

    @cached_property
    def smooth(self) -> Effect:
        """How much of the change is a function of the odds alone."""
        edges = np.quantile(self.odds, np.linspace(0, 1, 21)[1:-1])
        return explained(self.moved, np.digitize(self.odds, edges))

    @cached_property
    def by_token(self) -> Effect:
        """How much of the change is the token's, in every context; tails cut."""
        limit = 3 * np.median(np.abs(self.moved))
        return explained(np.clip(self.moved, -limit, limit), self.token)

    @cached_property
    def rare(self) -> Effect:
        """Rank correlation of the level with the odds: below 0, rare tokens move more."""
        return correlation(self.odds, self.level)

    @cached_property
    def trend(self) -> Effect:
        """Rank correlation of the level with the place, beyond what token and odds explain."""
        level = self.level.copy()
        edges = np.quantile(self.odds, np.linspace(0, 1, 11)[1:-1])
        for group in (self.token, np.digitize(self.odds, edges)) * 2:
            _, group = np.unique(group, return_inverse=True)
            level -= (np.bincount(group, level) / np.bincount(group))[group]
        return correlation(self.place.astype(float), level)

    @cached_property
    def start(self) -> float:
        """By how many factors of 10 the first token's change is above the others'."""
        first = self.place == 0
        if first.sum() < 5 or first.all():
            return 0.0
        return float(np.median(self.level[first]) - np.median(self.level[~first]))

    @cached_property
    def first(self) -> float:
        """Median |moved| of the responses' first tokens, nats."""
        first = self.place == 0
        return float(np.median(np.abs(self.moved[first]))) if first.sum() > 4 else 0.0

    @cached_property
    def agreement(self) -> Effect:
        """Rank correlation of the two sides' log-probs."""
        return correlation(self.tokens.sampler, self.tokens.trainer)

    @cached_property
    def off(self) -> Array:
        """Which tokens belong to the upper of two populations of levels."""
        return self.level > split(self.level)[0]

    @cached_property
    def exact(self) -> bool:
        """Whether some tokens are exact, to the eye of the levels' distribution."""
        return split(self.level)[1] >= TWO or self.typical < 0.05

    @cached_property
    def two_rows(self) -> bool:
        """Whether no token is exact, but responses are of two levels: over a floor of noise."""
        parted = split(self.row_level[~np.isnan(self.row_level)])[1] >= TWO_ROWS
        return not self.exact and parted and explained(self.level, self.row).size > 0.1

    @property
    def two(self) -> bool:
        """Whether some tokens are exact, or nearly, and others off."""
        return self.exact or self.two_rows

    @cached_property
    def by_id(self) -> Effect:
        """How much of whether a token is off is the token's."""
        return explained(self.off.astype(float), self.token)

    @cached_property
    def by_place(self) -> Effect:
        """How much of it is the place's."""
        return explained(self.off.astype(float), self.place)

    @cached_property
    def fading(self) -> Effect:
        """Rank correlation of the level with the place."""
        return correlation(self.place.astype(float), self.level)

    @cached_property
    def onset(self) -> tuple[Array, Array]:
        """Off and token [n] of those up to the first that is off, where that is not the first."""
        new = np.diff(self.row, prepend=-1) != 0
        before = np.cumsum(self.off) - self.off  # of all tokens
        before -= np.maximum.accumulate(np.where(new, before, 0))  # of the response's
        begun = np.isin(self.row, self.row[new & self.off])
        some = (before == 0) & ~begun
        return self.off[some], self.token[some]

    @cached_property
    def off_share(self) -> Array:
        """Of the tokens of each response [R] that are off; NaN where none can be compared."""
        rows = len(self.tokens.lengths)
        count = np.bincount(self.row, minlength=rows)
        off = np.bincount(self.row, self.off, minlength=rows)
        return np.divide(off, count, out=np.full(rows, np.nan), where=count > 0)

    @cached_property
    def rows_off(self) -> Array:
        """Which responses are off [R]."""
        if self.two_rows:
            return self.row_level > split(self.row_level[~np.isnan(self.row_level)])[0]
        return self.off_share > 0

    @cached_property
    def whole_rows(self) -> bool:
        """Whether responses are exact or off as a whole."""
        within, share = self.off[self.rows_off[self.row]], float(self.rows_off.mean())
        if self.two_rows or not self.exact or not 0 < share < 1 or within.mean() < PURE:
            return self.two_rows
        new = np.diff(self.row, prepend=-1) != 0
        first = self.off[new & self.rows_off[self.row]]
        return float(first.mean()) > float(within.mean()) - 0.05

    @cached_property
    def row_level(self) -> Array:
        """Mean level of each response [R]; NaN where none of its tokens can be compared."""
        return self.tokens.per_row(self.tokens.level, self.tokens.unsure)

    @property
    def ages_differ(self) -> bool:
        """Whether responses are known to be of weights of several ages."""
        return self.tokens.age is not None and np.ptp(self.tokens.age) > 0

    @property
    def least_age(self) -> float:
        """Of the weights that sampled, in versions; 0 where it is not known."""
        return 0.0 if self.tokens.age is None else float(self.tokens.age.min())

    @cached_property
    def by_age(self) -> Effect:
        """Rank correlation of the responses' level with the age of the weights that sampled."""
        age = self.tokens.age
        return NONE if age is None else correlation(age.astype(float), self.row_level)

    @cached_property
    def by_version(self) -> Effect:
        """The same with the version: below 0 where the newer weights are the better followed."""
        version = self.tokens.version
        return NONE if version is None else correlation(version.astype(float), self.row_level)

    @cached_property
    def loud(self) -> float:
        """The probability of this size where the two agree up to rounding."""
        every = np.ones(len(self.tokens.d), dtype=bool)
        return mean(self.tokens.per_row(np.abs(self.tokens.d) - 1e-5, every)).p
