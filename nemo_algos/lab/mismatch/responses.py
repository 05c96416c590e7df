"""The responses of some dumps: their prompts, tokens and what both sides recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nemo_algos.engines.dumps.dump import Dump
from nemo_algos.engines.dumps.responses import MICRO_BATCHES, Array, Response, responses
from nemo_algos.lab.mismatch.hypotheses.records import Record

LONGEST = 512  # tokens of a response that are recomputed
WORST = 4  # of so many responses one is picked since it differs most


@dataclass(frozen=True)
class Responses:
    """R responses; N: their tokens, one response after the other.

    lost: tokens that are left out since a side is not finite.
    """

    each: tuple[Response, ...]
    lost: int = 0

    @cached_property
    def row(self) -> Array:
        """The response of each token [N]."""
        return np.repeat(np.arange(len(self.each)), [len(r.at) for r in self.each])

    def column(self, name: str) -> Array:
        """An array of the responses', of each token [N]."""
        return np.concatenate([getattr(r, name) for r in self.each])

    @cached_property
    def d(self) -> Array:
        """log pi_trainer - log pi_sampler [N]."""
        return self.column("trainer") - self.column("sampler")

    @cached_property
    def age(self) -> Array | None:
        """Of each response [R], where all have one."""
        ages = [r.age for r in self.each]
        return None if None in ages else np.array(ages)

    def record(self, side: str, scale: Array, margin: float = 0.0) -> Record:
        """What a side recorded. scale [N], margin: as a Record has them."""
        place = self.column("place")
        token = self.column("tokens")
        return Record(self.column(side), scale, self.row, place, token, margin=margin)

    def first(self, count: int) -> Responses:
        """The first so many; their tokens are the first of all."""
        return replace(self, each=self.each[:count])

    def micro_batches(self) -> list[int]:
        """Sizes that pad these prompts, each in its own way."""
        ways = dict[tuple[int, ...], int]()
        for size in MICRO_BATCHES[::-1]:
            pads = tuple(r.pads(size) for r in self.each)
            if any(pads):
                ways[pads] = size
        return sorted(ways.values())

    def means(self, values: Array) -> Array:
        """Of each response [R]; values [N]."""
        return np.bincount(self.row, values) / np.bincount(self.row)


def everything(dumps: Sequence[Dump]) -> Responses:
    """All of them; tokens that are not finite are left out.

    Raises ValueError where none remains.
    """
    found = [response for dump in dumps for response in responses(dump)]
    if not found:
        raise ValueError("no token has two finite log-probs. Check the code that writes the file.")
    tokens = sum(int(dump.mask.sum()) for dump in dumps)
    return Responses(tuple(found), tokens - sum(len(r.at) for r in found))


def gather(dumps: Sequence[Dump], count: int) -> Responses:
    """At most so many to recompute: those that differ most, and others from all over the files.

    Raises ValueError where the files have no prompts.
    """
    every = [response for dump in dumps for response in responses(dump, LONGEST)]
    found = [r for r in every if r.begin]
    if not found:
        raise ValueError(
            "tokens has no prompts, and the model needs them. Dump prompt and response in one row, "
            "as `mismatch.dump` does."
        )
    count = min(count, len(found))
    # squared, so that a single token that is far off is seen among hundreds
    apart = np.array([np.mean((r.trainer - r.sampler) ** 2) for r in found])
    order = np.argsort(-apart, kind="stable")
    worst = order[: count // WORST]
    others = np.sort(order[count // WORST :])
    evenly = np.linspace(0, len(others) - 1, count - len(worst)).round().astype(int)
    picked = np.sort(np.r_[worst, others[evenly]])
    return Responses(tuple(found[i] for i in picked))
