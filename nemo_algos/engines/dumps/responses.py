"""The responses of a dump, one by one: prompt, tokens and what both sides recorded of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nemo_algos.engines.dumps.dump import Array, Dump

MICRO_BATCHES = (1 << 20, 2, 4, 8, 16, 32, 64)  # the first is all of a file


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

    @property
    def prompt(self) -> Array:
        return self.ids[: self.begin]


def responses(dump: Dump, longest: int | None = None) -> Iterator[Response]:
    """Of a dump, each with its first tokens of which both sides are finite."""
    finite = np.isfinite(dump.sampler_logprobs) & np.isfinite(dump.trainer_logprobs)
    start = _starts(dump)
    version = dump.weights_version
    length = dump.mask.argmax(1) - start
    step = dump.step
    if step is None and version is not None:
        step = version.max()
    for i, there in enumerate(dump.mask & finite):
        if not there.any():
            continue
        at = np.flatnonzero(there)[:longest]
        age = None
        if version is not None:
            age = int(step - np.min(version[i][at] if version.ndim == 2 else version[i]))
        entropy = None
        if dump.entropy is not None:
            entropy = dump.entropy[i, at].astype(np.float64)
        yield Response(
            ids=dump.tokens[i, start[i] : at[-1] + 1],
            at=at - start[i],
            sampler=dump.sampler_logprobs[i, at].astype(np.float64),
            trainer=dump.trainer_logprobs[i, at].astype(np.float64),
            widths={n: int(length[i - i % n : i - i % n + n].max()) for n in MICRO_BATCHES},
            entropy=entropy,
            age=age,
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
