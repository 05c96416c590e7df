"""The response tokens of some dumps side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from nemo_algos.engines.mismatch.dump import Dump

Array = np.ndarray


@dataclass(frozen=True)
class Tokens:
    """N tokens of R responses, in order: sampler, trainer [N] log-probs, nats.

    row, place, token [N]: the response, the place in it from 0, the id; entropy [N] of the
    trainer, age [R]: updates since the weights that sampled, or None; lost: tokens left out since
    a side is not finite.
    """

    sampler: Array
    trainer: Array
    row: Array
    place: Array
    token: Array
    entropy: Array | None = None
    age: Array | None = None
    lost: int = 0

    @cached_property
    def d(self) -> Array:
        """log pi_trainer - log pi_sampler [N]."""
        return self.trainer - self.sampler

    def per_row(self, values: Array) -> Array:
        """Means [R]."""
        return np.bincount(self.row, values) / self.lengths

    @cached_property
    def lengths(self) -> Array:
        """Tokens of each response [R]."""
        return np.bincount(self.row)


def gather(dumps: Sequence[Dump]) -> Tokens:
    """The tokens of all of them; those that are not finite are left out.

    Raises ValueError where none remains.
    """
    parts = [_of(dump) for dump in dumps]
    if not any(len(part.row) for part in parts):
        raise ValueError("no token has two finite log-probs. Check the code that writes the file.")
    starts = np.cumsum([0, *(len(part.lengths) for part in parts)])
    columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(Tokens)[:-1]}
    columns["row"] = [row + start for row, start in zip(columns["row"], starts, strict=False)]
    whole = {k: np.concatenate(v) for k, v in columns.items() if all(x is not None for x in v)}
    return Tokens(**whole, lost=sum(part.lost for part in parts))


def _of(dump: Dump) -> Tokens:
    finite = dump.mask & np.isfinite(dump.sampler_logprobs) & np.isfinite(dump.trainer_logprobs)
    some = np.flatnonzero(finite.any(1))
    mask = finite[some]
    return Tokens(
        sampler=dump.sampler_logprobs[some][mask].astype(np.float64),
        trainer=dump.trainer_logprobs[some][mask].astype(np.float64),
        row=mask.nonzero()[0],
        place=(mask.cumsum(1) - 1)[mask],
        token=dump.tokens[some][mask],
        entropy=None if dump.entropy is None else dump.entropy[some][mask].astype(np.float64),
        age=_age(dump, some, mask),
        lost=int(dump.mask.sum() - finite.sum()),
    )


def _age(dump: Dump, some: Array, mask: Array) -> Array | None:
    """[R], where it was dumped; of a response that a refit has met: its oldest."""
    if dump.weights_version is None:
        return None
    version = dump.weights_version[some]
    if version.ndim == 2:
        version = np.where(mask, version, np.iinfo(np.int64).max).min(1)
    return (version.max(initial=0) if dump.step is None else dump.step) - version
