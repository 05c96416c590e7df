"""What the causes are read from: each statistic of the tokens once, by a name."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from nemo_algos.lab.mismatch.populations import Populations
from nemo_algos.lab.mismatch.statistics import (
    NONE,
    Effect,
    correlation,
    difference,
    explained,
    mean,
)

SIGNIFICANT = 1e-3  # above: chance


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


class Picture(Populations):
    """Of the tokens whose odds can be compared, unless a statistic says otherwise."""

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
        """Rank correlation of that with the place."""
        return correlation(self.place.astype(float), self.beyond)

    @cached_property
    def from_start(self) -> Effect:
        """The same with the place in prompt and response together."""
        length = self.tokens.length
        before = 0 if length is None else length[self.row]
        return correlation((self.place + before).astype(float), self.beyond)

    @cached_property
    def by_length(self) -> Effect:
        """Rank correlation of a response's level with the length of its prompt."""
        length = self.tokens.length
        return NONE if length is None else correlation(length.astype(float), self.row_beyond)

    @cached_property
    def early(self) -> Effect:
        """By how many factors of 10 it is higher at the beginning than in the second half."""
        half = np.median(self.tokens.lengths) / 2
        first, rest = self.place < max(2, half / 5), self.place >= half
        return difference(self.beyond[first], self.beyond[rest])

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
    def fading(self) -> Effect:
        """Rank correlation of the level with the place."""
        return correlation(self.place.astype(float), self.level)

    @property
    def ages_differ(self) -> bool:
        """Whether responses are known to be of weights of several ages."""
        return self.tokens.age is not None and np.ptp(self.tokens.age) > 0

    @property
    def least_age(self) -> float:
        """Of the weights that sampled, in versions; 0 where it is not known."""
        return 0.0 if self.tokens.age is None else float(self.tokens.age.min())

    @property
    def all_old(self) -> bool:
        """Whether they are known to be of older weights, none twice as old as another."""
        age = self.tokens.age
        return age is not None and bool(0 < age.max() <= 2 * age.min())

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
        return mean(self.tokens.per_row(np.abs(self.tokens.d) - 1e-5)).p
