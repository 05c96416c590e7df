"""The responses of some dumps: their prompts, tokens and what both sides recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nemo_algos.engines.mismatch.dump import Dump
from nemo_algos.lab.mismatch.hypotheses.fit import Record

Array = np.ndarray
NEIGHBOURS = 8  # responses: they are picked in runs, since a pack holds neighbours
MICRO_BATCHES = (1 << 20, 2, 4, 8, 16, 32, 64)  # the first is all of a file
LONGEST = 512  # tokens of a response that are recomputed


@dataclass(frozen=True)
class Response:
    """ids: of prompt and response; at [n]: where in `ids` its tokens stand; sampler, trainer [n].

    widths: the longest prompt of its micro-batch, by the micro-batch's size; entropy [n] of the
    trainer, age: updates since the weights that sampled, the oldest; None where unknown.
    """

    ids: Array
    at: Array
    sampler: Array
    trainer: Array
    widths: dict[int, int]
    entropy: Array | None = None
    age: int | None = None

    @property
    def tokens(self) -> Array:
        """The ids of its tokens [n]."""
        return self.ids[self.at]

    @property
    def place(self) -> Array:
        """From 0 [n]."""
        return np.arange(len(self.at))

    def pads(self, size: int) -> int:
        """Before its prompt, in micro-batches of this size."""
        return self.widths[size] - self.begin

    @property
    def begin(self) -> int:
        """Tokens of its prompt."""
        return int(self.at[0])


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

    def record(self, side: str, scale: Array) -> Record:
        """What a side recorded; scale [N]: one standard deviation of rounding."""
        place, token = self.column("place"), self.column("tokens")
        return Record(self.column(side), scale, self.row, place, token)

    def first(self, count: int) -> Responses:
        """The first so many; their tokens are the first of all."""
        return replace(self, each=self.each[:count])

    def micro_batches(self) -> list[int]:
        """Sizes that pad these prompts, each in its own way."""
        ways = {tuple(r.pads(size) for r in self.each): size for size in MICRO_BATCHES[::-1]}
        return sorted(size for pads, size in ways.items() if any(pads))

    def means(self, values: Array) -> Array:
        """Of each response [R]; values [N]."""
        return np.bincount(self.row, values) / np.bincount(self.row)


def everything(dumps: Sequence[Dump]) -> Responses:
    """All of them; tokens that are not finite are left out.

    Raises ValueError where none remains.
    """
    found = [response for dump in dumps for response in _responses(dump)]
    if not found:
        raise ValueError("no token has two finite log-probs. Check the code that writes the file.")
    tokens = sum(int(dump.mask.sum()) for dump in dumps)
    return Responses(tuple(found), tokens - sum(len(r.at) for r in found))


def gather(dumps: Sequence[Dump], count: int) -> Responses:
    """At most so many to recompute, in runs of neighbours from all over the files.

    Raises ValueError where the files have no prompts.
    """
    found = [response for dump in dumps for response in _responses(dump, LONGEST)]
    if not any(r.begin for r in found):
        raise ValueError(
            "tokens has no prompts, and the model needs them. Dump prompt and response in one row, "
            "as `mismatch.dump` does."
        )
    runs = [found[i : i + NEIGHBOURS] for i in range(0, len(found), NEIGHBOURS)]
    wanted = max(1, min(len(runs), count // NEIGHBOURS))
    picked = np.linspace(0, len(runs) - 1, wanted).round().astype(int)
    some = [r for i in picked for r in runs[i]][:count]
    return Responses(tuple(r for r in some if r.begin))


def _responses(dump: Dump, longest: int | None = None) -> Iterator[Response]:
    finite = np.isfinite(dump.sampler_logprobs) & np.isfinite(dump.trainer_logprobs)
    start, version = _starts(dump), dump.weights_version
    length = dump.mask.argmax(1) - start
    step = 0 if version is None else version.max() if dump.step is None else dump.step
    for i, there in enumerate(dump.mask & finite):
        if not there.any():
            continue
        at = np.flatnonzero(there)[:longest]
        oldest = (
            0 if version is None else np.min(version[i][at] if version.ndim == 2 else version[i])
        )
        yield Response(
            ids=dump.tokens[i, start[i] : at[-1] + 1],
            at=at - start[i],
            sampler=dump.sampler_logprobs[i, at].astype(np.float64),
            trainer=dump.trainer_logprobs[i, at].astype(np.float64),
            widths={n: int(length[i - i % n : i - i % n + n].max()) for n in MICRO_BATCHES},
            entropy=None if dump.entropy is None else dump.entropy[i, at].astype(np.float64),
            age=None if version is None else int(step - oldest),
        )


def _starts(dump: Dump) -> Array:
    """Where each prompt begins [B]: behind its padding, where its length is not given."""
    begin = dump.mask.argmax(1)
    if dump.prompt_length is not None:
        return np.maximum(0, begin - dump.prompt_length)
    same = (np.cumsum(dump.tokens != dump.tokens[:, :1], 1) == 0).sum(1)
    same = np.minimum(same, begin)
    pad = dump.tokens[same.argmax(), 0]
    padded = (dump.tokens[:, 0] == pad) & (same.max() > 1)
    return np.where(padded, same, 0)
