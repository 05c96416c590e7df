"""Which tokens and responses are off, where others are exact, or nearly."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from nemo_algos.lab.mismatch.compared import Array, Compared
from nemo_algos.lab.mismatch.statistics import Effect, explained, split

TWO = 0.85  # of the variance of the levels between two populations; of one, normal or not, .6 to .7
TWO_ROWS = 0.8  # the same of the responses' mean levels, which are narrower
ROWS = 48  # responses: of fewer one population parts so by chance, of 16 7 times in 100
PURE = 0.75  # of a response's tokens that are off, where the response as a whole is


class Populations(Compared):
    """Two populations of levels, by Otsu's split."""

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
        parted = self.row_split[1] >= TWO_ROWS and len(self.row_beyond) >= ROWS
        return not self.exact and parted and explained(self.beyond, self.row).size > 0.1

    @cached_property
    def row_split(self) -> tuple[float, float]:
        """Where the responses' levels part best, and the share of the variance between."""
        return split(self.row_beyond[~np.isnan(self.row_beyond)])

    @property
    def two(self) -> bool:
        """Whether some tokens are exact, or nearly, and others off."""
        return self.exact or self.two_rows

    @cached_property
    def rows_off(self) -> Array:
        """Which responses are off [R]."""
        if self.two_rows:
            return self.row_beyond > self.row_split[0]
        return self.per_row(self.off) > 0

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
    def onset(self) -> tuple[Array, Array]:
        """Off and token [n] of those up to the first that is off, where that is not the first."""
        new = np.diff(self.row, prepend=-1) != 0
        before = np.cumsum(self.off) - self.off  # of all tokens
        before -= np.maximum.accumulate(np.where(new, before, 0))  # of the response's
        begun = np.isin(self.row, self.row[new & self.off])
        some = (before == 0) & ~begun
        return self.off[some], self.token[some]

    @cached_property
    def by_id(self) -> Effect:
        """How much of whether a token is off is the token's."""
        return explained(self.off.astype(float), self.token)

    @cached_property
    def by_place(self) -> Effect:
        """How much of it is the place's."""
        return explained(self.off.astype(float), self.place)
