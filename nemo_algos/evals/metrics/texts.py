"""The responses to one problem as numbers. n responses, U different ones, V different tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

# Words, and every other printed character by itself: "x=5" and "x=7" must differ, and they do not
# in scikit-learn's default, which drops tokens of one character.
TOKEN = re.compile(r"\w+|[^\w\s]")
ROUGE_TOKEN = re.compile(r"[a-z0-9]+")  # rouge-score's


@dataclass(frozen=True)
class Texts:
    """unique [U]: sorted, so that nothing depends on the order of the responses; index [n]: the
    place in it of each response."""

    unique: list[str]
    index: NDArray[np.int64]

    @staticmethod
    def of(responses: list[str]) -> Texts:
        unique = sorted(set(responses))
        place = {text: i for i, text in enumerate(unique)}
        return Texts(unique, np.array([place[text] for text in responses], dtype=np.int64))

    @cached_property
    def tokens(self) -> list[list[int]]:
        """[U]: of the lower-cased text."""
        return number(self.unique, TOKEN)

    @cached_property
    def counts(self) -> csr_array:
        """[U, V] float64: how often each token occurs."""
        columns = np.concatenate([np.array(t, dtype=np.int64) for t in self.tokens])
        ends = np.cumsum([0, *map(len, self.tokens)])
        shape = (len(self.unique), int(columns.max(initial=0)) + 1)
        counts = csr_array((np.ones(len(columns)), columns, ends), shape=shape)
        counts.sum_duplicates()
        return counts


def number(texts: list[str], token: re.Pattern[str]) -> list[list[int]]:
    """Each text's tokens, numbered from 0 in the order in which they first occur."""
    numbers: dict[str, int] = {}
    return [
        [numbers.setdefault(word, len(numbers)) for word in token.findall(text.lower())]
        for text in texts
    ]
