"""The response tokens of some dumps side by side, and how far each one's odds have moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nemo_algos.mismatch.dump import Dump

Array = np.ndarray
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
    which prompt it is, or None; entropy [N] of the trainer, or None.
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

    def per_row(self, values: Array, where: Array) -> Array:
        """Means [R] over the tokens `where`; NaN for a response without one."""
        rows = len(self.lengths)
        count = np.bincount(self.row[where], minlength=rows)
        total = np.bincount(self.row[where], values[where], minlength=rows)
        return np.divide(total, count, out=np.full(rows, np.nan), where=count > 0)

    @cached_property
    def lengths(self) -> Array:
        """Tokens of each response [R]."""
        return np.bincount(self.row)


def gathered(dumps: Sequence[Dump]) -> Tokens:
    """The tokens of all of them; those that are not finite are left out.

    Raises ValueError where none remains.
    """
    parts = [_of(dump) for dump in dumps]
    if not any(len(part.row) for part in parts):
        raise ValueError("no token has two finite log-probs: look at what writes the file")
    starts = np.cumsum([0, *(len(p.lengths) for p in parts)])
    names = (
        "sampler",
        "trainer",
        "row",
        "place",
        "token",
        "entropy",
        "age",
        "version",
        "length",
        "prompt",
    )
    columns = {name: [getattr(p, name) for p in parts] for name in names}
    for name in ("row", "prompt"):  # numbers of their own dump
        columns[name] = [
            x if x is None else x + n for x, n in zip(columns[name], starts, strict=False)
        ]
    whole = {k: np.concatenate(v) for k, v in columns.items() if all(x is not None for x in v)}
    return Tokens(**whole)


def _of(dump: Dump) -> Tokens:
    finite = np.isfinite(dump.sampler_logprobs) & np.isfinite(dump.trainer_logprobs)
    some = (dump.mask & finite).any(1)
    mask = (dump.mask & finite)[some]
    row = mask.nonzero()[0]
    place = (mask.cumsum(1) - 1)[mask]
    version = None if dump.weights_version is None else dump.weights_version[some]
    if version is not None and version.ndim == 2:  # of a response that a refit has met: its oldest
        version = np.where(mask, version, np.iinfo(np.int64).max).min(1)
    age = None
    if version is not None:
        age = (version.max(initial=0) if dump.step is None else dump.step) - version
    length, prompt = _prompts(dump, some)
    sampler, trainer = (
        x[some][mask].astype(np.float64) for x in (dump.sampler_logprobs, dump.trainer_logprobs)
    )
    entropy = None if dump.entropy is None else dump.entropy[some][mask].astype(np.float64)
    token = dump.tokens[some][mask]
    return Tokens(sampler, trainer, row, place, token, entropy, age, version, length, prompt)


def _prompts(dump: Dump, some: Array) -> tuple[Array | None, Array | None]:
    """Tokens before each response, and which prompts are the same [R]; None where not dumped."""
    tokens, begin = dump.tokens[some], dump.mask[some].argmax(1)
    if not begin.any():
        return None if dump.prompt_length is None else dump.prompt_length[some], None
    keys = [row[:n].tobytes() for row, n in zip(tokens, begin, strict=True)]
    prompt = np.unique(keys, return_inverse=True)[1]
    if dump.prompt_length is not None:
        return dump.prompt_length[some], prompt
    same = (np.cumsum(tokens != tokens[:, :1], 1) == 0).sum(1)  # of the first id, at the front
    pad = tokens[same.argmax(), 0]
    return begin - np.where(tokens[:, 0] == pad, np.minimum(same, begin), 0), prompt
