"""The response tokens of some dumps side by side, and how far each one's odds have moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from nemo_algos.engines.mismatch.dump import Dump
from nemo_algos.lab.mismatch.statistics import means

Array = np.ndarray
EVERY = slice(None)
SURE = 2e-3  # nats: beyond that probability float32 does not resolve the odds
FLOOR, CEILING = 1e-7, 30.0  # of -log p, nats


def odds(logprob: Array) -> Array:
    """log p / (1 - p), within the floor and the ceiling."""
    p = -np.clip(-logprob, FLOOR, CEILING)
    return p - np.log(-np.expm1(p))


@dataclass(frozen=True)
class Tokens:
    """N tokens of R responses, in order: sampler, trainer [N] log-probs, nats.

    row, place, token [N]: the response, the place in it from 0, the id; age, version, length,
    prompt [R]: updates since the weights that sampled, their version, tokens of the prompt, and
    which prompt it is, or None; entropy [N] of the trainer, or None; lost: tokens left out since a
    side is not finite.
    """

    sampler: Array
    trainer: Array
    row: Array
    place: Array
    token: Array
    entropy: Array | None = None
    age: Array | None = None
    version: Array | None = None
    length: Array | None = None
    prompt: Array | None = None
    lost: int = 0

    @cached_property
    def d(self) -> Array:
        """log pi_trainer - log pi_sampler [N]."""
        return self.trainer - self.sampler

    @cached_property
    def unsure(self) -> Array:
        """[N] bool: where either leaves a doubt, so that the odds can be compared."""
        return np.minimum(self.sampler, self.trainer) < -SURE

    @cached_property
    def moved(self) -> Array:
        """By how much the trainer's odds of the token are higher [N], nats.

        A change of the logits moves the odds of likely and of rare tokens alike; d it moves by a
        share of 1 - p.
        """
        return odds(self.trainer) - odds(self.sampler)

    @cached_property
    def odds(self) -> Array:
        """Between the two sides' [N]: noise of either leaves no trend in it."""
        return (odds(self.trainer) + odds(self.sampler)) / 2

    @cached_property
    def level(self) -> Array:
        """log10 of |moved| [N], from float noise up."""
        return np.log10(np.maximum(np.abs(self.moved), 1e-5))

    def per_row(self, values: Array, where: Array | slice = EVERY) -> Array:
        """Means [R] over the tokens `where`; NaN for a response without one."""
        return means(values[where], self.row[where], len(self.lengths))

    def only(self, where: Array) -> Tokens:
        """Those tokens of the same responses; without their entropies."""
        columns = ("sampler", "trainer", "row", "place", "token")
        return replace(self, entropy=None, **{k: getattr(self, k)[where] for k in columns})

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
        raise ValueError("no token has two finite log-probs: look at what writes the file")
    starts = np.cumsum([0, *(len(p.lengths) for p in parts)])
    columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(Tokens)[:-1]}
    for name in ("row", "prompt"):  # counted within their dump
        pairs = zip(columns[name], starts, strict=False)
        columns[name] = [own if own is None else own + start for own, start in pairs]
    whole = {k: np.concatenate(v) for k, v in columns.items() if all(x is not None for x in v)}
    return Tokens(**whole, lost=sum(part.lost for part in parts))


def _of(dump: Dump) -> Tokens:
    finite = dump.mask & np.isfinite(dump.sampler_logprobs) & np.isfinite(dump.trainer_logprobs)
    some = np.flatnonzero(finite.any(1))
    mask = finite[some]
    columns = {
        "row": mask.nonzero()[0],
        "place": (mask.cumsum(1) - 1)[mask],
        "token": dump.tokens[some][mask],
        "sampler": dump.sampler_logprobs[some][mask].astype(np.float64),
        "trainer": dump.trainer_logprobs[some][mask].astype(np.float64),
    }
    if dump.entropy is not None:
        columns["entropy"] = dump.entropy[some][mask].astype(np.float64)
    lost = int(dump.mask.sum() - finite.sum())
    return Tokens(**columns, **_versions(dump, some, mask), **_prompts(dump, some), lost=lost)


def _versions(dump: Dump, some: Array, mask: Array) -> dict[str, Array]:
    """Version and age [R], where it was dumped."""
    if dump.weights_version is None:
        return {}
    version = dump.weights_version[some]
    if version.ndim == 2:  # of a response that a refit has met: its oldest
        version = np.where(mask, version, np.iinfo(np.int64).max).min(1)
    newest = version.max(initial=0) if dump.step is None else dump.step
    return {"version": version, "age": newest - version}


def _prompts(dump: Dump, some: Array) -> dict[str, Array]:
    """Tokens before each response, and which prompts are the same [R], where they were dumped."""
    tokens, begin = dump.tokens[some], dump.mask[some].argmax(1)
    known = {} if dump.prompt_length is None else {"length": dump.prompt_length[some]}
    if not begin.any():
        return known
    keys = [row[:n].tobytes() for row, n in zip(tokens, begin, strict=True)]
    prompt = np.unique(keys, return_inverse=True)[1]
    return {"prompt": prompt, "length": begin - _pads(tokens, begin)} | known


def _pads(tokens: Array, begin: Array) -> Array:
    """How often each prompt's first id is the one that begins the most padded, from there on.

    None where no prompt begins with an id twice: then none is padded.
    """
    same = (np.cumsum(tokens != tokens[:, :1], 1) == 0).sum(1)
    pad = tokens[same.argmax(), 0]
    padded = (tokens[:, 0] == pad) & (same.max() > 1)
    return np.where(padded, np.minimum(same, begin), 0)
