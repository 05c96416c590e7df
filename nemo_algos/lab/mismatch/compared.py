"""The tokens whose odds can be compared, in columns, and their responses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nemo_algos.lab.mismatch.statistics import means
from nemo_algos.lab.mismatch.tokens import Tokens

Array = np.ndarray


@dataclass(frozen=True)
class Compared:
    """Columns [M] of the M of N tokens that leave a doubt, and means [R] of responses."""

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
    def beyond(self) -> Array:
        """The level beyond what token and odds explain."""
        level = self.level.copy()
        edges = np.quantile(self.odds, np.linspace(0, 1, 11)[1:-1])
        for group in (self.token, np.digitize(self.odds, edges)) * 2:
            _, group = np.unique(group, return_inverse=True)
            level -= (np.bincount(group, level) / np.bincount(group))[group]
        return level

    @cached_property
    def spread(self) -> float:
        """Root mean square of moved."""
        return float(np.sqrt((self.moved**2).mean()))

    @cached_property
    def typical(self) -> float:
        """Median |moved| of the spread: .67 of normal noise, less the heavier the tails."""
        return float(np.median(np.abs(self.moved)) / self.spread)

    @cached_property
    def row_level(self) -> Array:
        """Mean level of each response [R]; NaN where none of its tokens can be compared."""
        return self.per_row(self.level)

    @cached_property
    def row_beyond(self) -> Array:
        """The same beyond what token and odds explain."""
        return self.per_row(self.beyond)

    def per_row(self, values: Array) -> Array:
        """Means [R] of a column; NaN for a response without a token here."""
        return means(values, self.row, len(self.tokens.lengths))
