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
        ages = [response.age for response in self.each]
        if None in ages:
            return None
        return np.array(ages)

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
    finite: list[Response] = []
    tokens = 0
    for dump in dumps:
        finite += responses(dump)
        tokens += int(dump.mask.sum())
    if not finite:
        raise ValueError("no token has two finite log-probs. Check the code that writes the file.")
    return Responses(tuple(finite), tokens - sum(len(response.at) for response in finite))


def gather(dumps: Sequence[Dump], count: int) -> Responses:
    """At most so many to recompute: those that differ most, and others from all over the files.

    Raises ValueError where the files have no prompts.
    """
    prompted: list[Response] = []
    apart = []
    for dump in dumps:
        for response in responses(dump, LONGEST):
            if response.begin:
                prompted.append(response)
                # squared, so that a single token that is far off is seen among hundreds
                apart.append(np.mean((response.trainer - response.sampler) ** 2))
    if not prompted:
        raise ValueError(
            "tokens has no prompts, and the model needs them. Dump prompt and response in one row, "
            "as `mismatch.dump` does."
        )
    count = min(count, len(prompted))
    order = np.argsort(-np.array(apart), kind="stable")
    worst = order[: count // WORST]
    others = np.sort(order[count // WORST :])
    evenly = np.linspace(0, len(others) - 1, count - len(worst)).round().astype(int)
    picked = np.sort(np.r_[worst, others[evenly]])
    return Responses(tuple(prompted[i] for i in picked))
